"""Runs a solution in a sandbox and compares its outputs on the host.

Solution and harness share an interpreter, so nothing that comes back is trusted. Only inputs go in; expected outputs never do.
Whatever the solution prints, patches or exits with, it passes only if the values that come back are the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandboxes.contract import Sandbox

TIMEOUT_S = 5.0
VISIBLE_TESTS = 2
_MAX_OUTPUT = 65536
_MAX_SHOWN = 40
_MAX_LENGTH = 64
"""Longer lists, and ints of more than 18 digits, come back as cut text: no test expects one."""

_HARNESS = """\
import json, os, sys
code, name, inputs = {code!a}, {name!a}, {inputs!a}
write, dumps = os.write, json.dumps
sys.stdout = sys.stderr = open(os.devnull, "w")
def plain(value):
    return type(value) is list and len(value) <= {max_length} and all(type(a) is int and abs(a) < 10**18 for a in value)
space, outputs, answer = {{"__name__": "solution"}}, [], None
try:
    exec(compile(code, "solution.py", "exec"), space)
    function = space[name]
    for given in inputs:
        try:
            value = function(given)
            outputs.append([value] if plain(value) else repr(value)[:{max_shown}])
        except Exception as error:
            outputs.append(type(error).__name__)
    answer = {{"outputs": outputs}}
except Exception as error:
    answer = {{"error": (type(error).__name__ + ": " + str(error))[:{max_shown}]}}
write(1, ("\\n" + dumps(answer)).encode())
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What came back: an ``error`` of the whole program, or per input a list of ints or the text of anything else."""

    outputs: tuple[list[int] | str, ...] = ()
    error: str | None = None


async def run(sandbox: Sandbox, code: str, function: str, inputs: Sequence[list[int]]) -> Run:
    """Call ``function`` of ``code`` once per input. A program that ends early, hangs or answers garbage was "Killed"."""
    program = _HARNESS.format(code=code, name=function, inputs=list(inputs), max_length=_MAX_LENGTH, max_shown=_MAX_SHOWN)
    result = await sandbox.run_python(program, timeout=TIMEOUT_S, max_output=_MAX_OUTPUT)
    killed = Run(error="Killed")
    if result.timed_out or result.truncated:
        return killed
    try:
        answer = json.loads(result.stdout.rsplit(b"\n", 1)[-1])
    except (ValueError, RecursionError):
        return killed
    if not isinstance(answer, dict):
        return killed
    if isinstance(error := answer.get("error"), str):
        return Run(error=printable(error))
    outputs = answer.get("outputs")
    if not isinstance(outputs, list) or len(outputs) != len(inputs):
        return killed
    return Run(tuple(_output(item) for item in outputs))


async def try_out(sandbox: Sandbox, code: str, payload: Any) -> tuple[str, bool]:
    """What the visible tests say of ``code``, and whether one failed: then the six, of which they are the first, would too."""
    visible = slice(VISIBLE_TESTS)
    outcome = await run(sandbox, code, payload["function"], payload["inputs"][visible])
    failure = first_failure(outcome, payload["expected"][visible])
    if outcome.error is not None:
        return f"error: {outcome.error}", True
    return ("passed", False) if failure is None else (f"FAIL {failure}", True)


async def verdict(sandbox: Sandbox, code: str, payload: Any) -> str | None:
    """How ``code`` fails the six tests, None when it passes."""
    outcome = await run(sandbox, code, payload["function"], payload["inputs"])
    return first_failure(outcome, payload["expected"])


def first_failure(outcome: Run, expected: Sequence[list[int]]) -> str | None:
    """How the first wrong output differs, None when each is exactly the expected list of ints."""
    if outcome.error is not None:
        return outcome.error
    for got, want in zip(outcome.outputs, expected, strict=True):
        if got != want:
            return _difference(got, want)
    return None


def _output(item: object) -> list[int] | str:
    # A bool equals an int in Python, so the types are tested and not only the values.
    if isinstance(item, list) and len(item) == 1 and isinstance(item[0], list) and all(type(n) is int for n in item[0]):
        return list(item[0])
    return printable(item) if isinstance(item, str) else "garbage"


def printable(text: str) -> str:
    """``text`` short, and with replacement characters for what can't be printed."""
    # The solution chooses this text, by an exception's message or a __repr__, and it is stored and shown.
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:_MAX_SHOWN])


def _difference(got: list[int] | str, want: list[int]) -> str:
    if isinstance(got, str):
        return f"got {got[:12]}"
    for index, (mine, right) in enumerate(zip(got, want, strict=False)):
        if mine != right:
            return f"item {index}: got {mine} want {right}"
    return f"length: got {len(got)} want {len(want)}"
