"""Programs that run inside a sandbox: this file's text is sent there with a call of `answer` or `judge` below it.

`answer` runs a solution on inputs and never sees a test. `judge` runs tests and never sees a solution: it calls a stand-in that
knows the answers of earlier rounds, and asks for those that it does not know yet. It imports the standard library alone.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
from typing import Any

MOST_CALLS = 5000
SHOWN = 200


def encode(value: Any) -> Any:
    """A value as JSON that keeps its type; TypeError for what is no plain data."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, (float, complex)):
        return [type(value + 0).__name__, repr(value + 0)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(item)] for key, item in value.items()]]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items = [encode(item) for item in value]
            return [kind.__name__, sorted(items, key=repr) if kind in (set, frozenset) else items]
    raise TypeError(f"{type(value).__name__} is no plain data")


def decode(value: Any) -> Any:
    """The inverse of `encode`; ValueError, TypeError or KeyError for anything that it does not produce."""
    if value is None or isinstance(value, (bool, str)):
        return value
    kind, content = value
    if kind in ("int", "float", "complex"):
        return {"int": int, "float": float, "complex": complex}[kind](content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](decode(item) for item in content)


def _be_silent() -> None:
    """What is printed must not follow the result, which is the last line."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives


def answer(given: dict[str, Any]) -> None:
    """Write what ``function`` of ``code`` returns or raises for each of ``calls``."""
    write, dumps = os.write, json.dumps
    _be_silent()
    space: dict[str, Any] = {"__name__": "solution"}
    answers: list[Any] = []
    error = None
    try:
        exec(compile(given["code"], "solution.py", "exec"), space)
        function = space[given["function"]]
        for call in given["calls"]:
            arguments, named = json.loads(call)
            try:
                answers.append(["value", encode(function(*decode(arguments), **decode(named)))])
            except Exception as raised:
                answers.append(["raised", type(raised).__name__])
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:SHOWN]
    write(1, ("\n" + dumps({"answers": answers, "error": error})).encode())


class Unknown:
    """Stands for an answer that is not there yet, so that one round finds as many calls as it can: everything works on it."""

    def _same(self, *_: Any) -> Unknown:
        return self

    def _yes(self, *_: Any) -> bool:
        return True

    def _zero(self, *_: Any) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter(())

    def __float__(self) -> float:
        return 0.0

    def __hash__(self) -> int:
        return 0

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = _yes
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __abs__ = __neg__ = __round__ = _same
    __getitem__ = __getattr__ = __call__ = _same
    __int__ = __index__ = __len__ = _zero


class _TooManyCalls(BaseException):
    pass


def judge(given: dict[str, Any]) -> None:
    """Write the calls whose answers are ``wanted``, or else how the tests failed (None: they passed)."""
    known, wanted, count = given["answers"], {}, 0

    def candidate(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count > MOST_CALLS:
            raise _TooManyCalls
        call = json.dumps([encode(arguments), encode(named)])
        if call not in known:
            wanted[call] = True
            return Unknown()
        kind, value = known[call]
        if kind == "value":
            return decode(value)
        error = getattr(builtins, str(value), None)
        raise error if isinstance(error, type) and issubclass(error, Exception) else RuntimeError(value)

    _be_silent()
    random.seed(0)
    space: dict[str, Any] = {"__name__": "tests"}
    failure = None
    try:
        exec(compile(given["preamble"], "problem.py", "exec"), space)
        space[given["function"]] = candidate
        exec(compile(given["tests"], "tests.py", "exec"), space)
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"[:SHOWN]
    os.write(1, ("\n" + json.dumps({"wanted": list(wanted), "failure": failure})).encode())
