"""Checks of how code and commands run."""

from __future__ import annotations

import contextlib

from sandboxes.contract import Sandbox
from sandboxes.self_check.expectations import CheckFailed, expect, python


async def code_runs_as_main_in_the_workspace(sandbox: Sandbox) -> None:
    result = await python(sandbox, "import os, sys\nprint(__name__, os.path.basename(os.getcwd()), len(sys.argv))")
    expect(result.stdout == b"__main__ workspace 1\n", "__main__ in workspace", result)
    await sandbox.write_file("helper.py", b"VALUE = 41")
    result = await python(sandbox, "import helper\nprint(helper.VALUE + 1)")
    expect(result.stdout == b"42\n", "modules of the workspace can be imported", result)


async def an_exception_is_a_result_with_its_line(sandbox: Sandbox) -> None:
    result = await sandbox.run_python("def f():\n    return 1 / 0\nf()\n")
    expect(result.exit_code == 1, "exit code 1", result)
    expect(b"line 2, in f" in result.stderr and b"return 1 / 0" in result.stderr, "the failing line", result)
    expect(result.stderr.count(b"File ") == 2, "no frames but the code's own", result)
    result = await sandbox.run_python("def")
    expect(result.exit_code == 1 and b"SyntaxError" in result.stderr, "a syntax error", result)


async def exit_codes_and_signals_are_told_apart(sandbox: Sandbox) -> None:
    for code, expected in {
        "import sys; sys.exit(7)": 7,
        "import os; os._exit(9)": 9,
        "import sys; sys.exit('told')": 1,
        "raise SystemExit": 0,
        "import os; os.kill(os.getpid(), 9)": -9,
        "import os; os.abort()": -6,
    }.items():
        result = await sandbox.run_python(code)
        expect(result.exit_code == expected and not result.timed_out, f"{code} -> {expected}", result)
    result = await sandbox.run_python(
        "import atexit, threading, time\natexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"
    )
    expect(result.stdout == b"thread\nlast\n", "threads are awaited, exit functions run", result)


async def one_run_does_not_reach_the_next(sandbox: Sandbox) -> None:
    await python(sandbox, "import builtins, json, os, sys\nbuiltins.print = None\njson.dumps = len\nos.environ['LEFT'] = '1'\n"
                          "sys.modules['math'] = None\nos.chdir('/')\nsys.path.clear()")  # fmt: skip
    result = await python(
        sandbox, "import json, math, os, sys\nprint(json.dumps([1]), 'LEFT' in os.environ, os.getcwd() != '/')"
    )
    expect(result.stdout == b"[1] False True\n", "a run like the first", result)


async def files_last_from_run_to_run(sandbox: Sandbox) -> None:
    await python(sandbox, "open('note', 'w').write('kept')")
    expect((await sandbox.exec("cat note")).stdout == b"kept", "a file of the run before")


async def commands_take_arguments_input_and_environment(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "\n#'"])
    expect(result.stdout == b"a b|$HOME|\n#'|", "arguments as they are", result)
    result = await sandbox.exec("cat; echo $NAME", stdin=b"\x00\xffin", env={"NAME": "v w"})
    expect(result.stdout == b"\x00\xffinv w\n", "input and environment", result)
    result = await sandbox.exec("echo $HOME; command -v sh")
    expect(result.text.startswith("/") and result.text.endswith("/sh\n"), "a home and a path", result)
    result = await sandbox.run_python("import os; print(os.environ['NAME'])", env={"NAME": "ü"})
    expect(result.stdout == "ü\n".encode(), "the environment of code", result)
    result = await sandbox.exec("cat <<'EOF'\nit's \"here\"\nEOF\necho done # comment")
    expect(result.stdout == b'it\'s "here"\ndone\n', "shell text as it is", result)
    result = await sandbox.exec("cat <<'EOF'\nlast\nEOF", timeout=10)
    expect(result.stdout == b"last\n" and not result.timed_out, "a text that ends with its terminator", result)
    result = await sandbox.exec("echo 'open", timeout=10)
    expect(result.exit_code not in (0, None) and result.stderr, "an open quote is a failed command", result)
    expect((await sandbox.exec("echo ok")).stdout == b"ok\n", "the next command as if nothing had been")


async def standard_input_is_empty(sandbox: Sandbox) -> None:
    result = await sandbox.run_python("input()", timeout=10)
    expect(b"EOFError" in result.stderr and not result.timed_out, "the end of input at once", result)
    result = await sandbox.exec("cat; read line; echo $?", timeout=10)
    expect(result.stdout == b"1\n", "the end of input at once", result)


async def a_command_that_cannot_start_is_a_result(sandbox: Sandbox) -> None:
    expect((await sandbox.exec(["no-such-program"])).exit_code == 127, "127 for a missing program")
    expect((await sandbox.exec(["/tmp"])).exit_code == 126, "126 for what is no program")
    for command in (["echo", "a\x00b"], ["echo", "\ud800"], ["echo", "x" * (5 << 20)], "echo '" + "x" * 200_000):
        result = await sandbox.exec(command)
        expect(result.exit_code in (126, 127, 2) and result.stderr, "a failed command", result)
    for code in ("\x00", "print('\ud800')", "(" * 5000, b"\xff\xfe"):
        result = await sandbox.run_python(code)
        expect(result.exit_code not in (0, None), "failed code", result)


async def endless_limits_are_refused(sandbox: Sandbox) -> None:
    for timeout in (0.0, -1.0, float("inf"), float("nan")):
        with contextlib.suppress(ValueError):
            await sandbox.run_python("pass", timeout=timeout)
            raise CheckFailed(f"timeout {timeout} was accepted")


async def commands_start_where_they_are_told(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p deep/er")
    for cwd, end in {None: "workspace", "deep": "workspace/deep", "/workspace/deep/er": "workspace/deep/er"}.items():
        result = await sandbox.exec("pwd", cwd=cwd)
        expect(result.text.strip().endswith(end), f"{end} for cwd={cwd!r}", result)
    for cwd in ("missing", "a\x00b"):
        result = await sandbox.exec("echo started", cwd=cwd)
        expect(result.exit_code == 126 and not result.stdout and result.stderr, "a failed command", result)
