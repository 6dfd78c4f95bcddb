"""Runs the policy's Python in its sandbox and says what it printed, like a notebook's cell."""

from __future__ import annotations

from sandboxes.contract import Sandbox

MAX_OUTPUT = 1 << 20
_CELL = """\
import ast, sys, traceback
source = {code!a}
space = {{"__name__": "__main__"}}
try:
    tree = ast.parse(source, "cell.py")
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell.py", "exec"), space)
    value = eval(compile(last, "cell.py", "eval"), space) if last is not None else None
    if value is not None:
        print(repr(value))
except SystemExit:
    pass
except BaseException as error:
    print("".join(traceback.format_exception_only(type(error), error)).strip())
"""


async def run_cell(sandbox: Sandbox, code: str, timeout_s: float) -> str:
    """What ``code`` printed, the value of a last expression included. An error is its last line, a time-out says so."""
    result = await sandbox.run_python(_CELL.format(code=code), timeout=timeout_s, max_output=MAX_OUTPUT)
    text = result.text
    if result.timed_out:
        return f"{text}\nerror: no end within {timeout_s:g} s".strip()
    if result.truncated:
        return f"{text}\n... cut: {result.total_stdout} bytes were printed"
    if result.exit_code:
        return f"{text}\nerror: ended with exit code {result.exit_code}".strip()
    return text.strip()
