"""Is an answer right? Numbers are compared exactly on the host; other expressions in a limited process of their own.

An answer that asks for too much time or memory is wrong, since the expected one alone does not. A checker that can't work for
any other reason gives no verdict.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

from agentrl.errors import EnvironmentFault
from environments.answers import MAX_ANSWER_CHARS, final_answer, number, plain, same_number
from environments.math_python import symbolic

CPU_S = 5
WALL_S = 60.0
"""Only a machine that does not give the process its CPU seconds within this time gets no verdict."""
_OUT_OF_RESOURCES = (-signal.SIGXCPU, -signal.SIGSEGV)
_MATHEMATICS = re.compile(r"[\d+*/^()\\-]|\b[a-z]\b")
_PROGRAM = Path(symbolic.__file__)


async def is_right(answer: str, expected: str, tolerance: float = 0.0) -> tuple[bool, str]:
    """The verdict on a final answer and how it was found: ``number``, ``text``, or a word of `symbolic`."""
    if len(answer) > MAX_ANSWER_CHARS:
        return False, "too long"
    answer, expected = _value(answer), _value(expected)
    verdict = same_number(answer, expected, tolerance)
    if verdict or (verdict is False and number(answer) is not None):
        return verdict, "number"
    if answer and symbolic.readable(answer) == symbolic.readable(expected):
        return True, "text"
    if not _MATHEMATICS.search(expected):
        return bool(plain(answer)) and plain(answer) == plain(expected), "text"
    if not _MATHEMATICS.search(answer):
        return False, symbolic.UNREADABLE
    told = await _compare(answer, expected)
    return told == symbolic.EQUAL, told


def _value(text: str) -> str:
    """Without the name of the unknown: ``x = 3`` says 3."""
    text = final_answer(text).strip(" $")
    name, separator, value = text.partition("=")
    return value.strip() if separator and "=" not in value and len(name.strip()) <= 2 else text


async def _compare(answer: str, expected: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(_PROGRAM),
        str(CPU_S),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.defpath, "OMP_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(WALL_S):
            out, errors = await process.communicate(json.dumps({"answer": answer, "expected": expected}).encode())
    except TimeoutError:
        raise EnvironmentFault(f"no verdict on {answer!r:.100}: the checker got no CPU within {WALL_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    told = out.decode().strip()
    if process.returncode in _OUT_OF_RESOURCES:
        return symbolic.UNDECIDED
    if process.returncode or told not in (symbolic.EQUAL, symbolic.DIFFERENT, symbolic.UNREADABLE, symbolic.UNDECIDED):
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise EnvironmentFault(
            f"no verdict on {answer!r:.100} against {expected!r:.100}: {' '.join(last)} ({process.returncode})"
        )
    return told
