"""Judges a solution by tests that are code, although solution and tests never meet.

Were they in one interpreter, the solution could patch the tests. So the tests run alone, in a clean sandbox, against a stand-in
for the function; the calls that they make go to the host, which has the solution answer them in another clean sandbox, and the
tests run again with the answers. Usually one round does. Nothing but these answers, which are plain data, reaches the tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.errors import EnvironmentFault
from environments.code_agent.execution import printable
from sandboxes.contract import Sandbox
from sandboxes.lazy import LazySandbox

TIMEOUT_S = 10.0
MOST_ROUNDS = 8
_MAX_OUTPUT = 1 << 20
_MAX_SHOWN = 2000
_INSIDE = (Path(__file__).parent / "inside.py").read_text()


async def try_out(sandbox: Sandbox, code: str, payload: Any) -> tuple[str, bool]:
    """What running ``code`` and the shown tests prints. False: what it prints is for the agent to read and proves nothing."""
    program = "\n".join([payload["preamble"], code, *payload["shown"]])
    result = await sandbox.run_python(program, timeout=TIMEOUT_S, max_output=65536)
    if result.timed_out:
        return f"error: still running after {TIMEOUT_S:g} s", False
    printed = (result.stdout + result.stderr).decode("utf-8", "replace")[-_MAX_SHOWN:]
    if result.exit_code == 0:
        return printed or ("passed" if payload["shown"] else "no error"), False
    return printed or f"exit code {result.exit_code}", False


async def verdict(sandbox: LazySandbox, code: str, payload: Any) -> str | None:
    """How ``code`` fails the hidden tests, None when it passes. `EnvironmentFault` for tests that don't work by themselves."""
    answers: dict[str, Any] = {}
    for _ in range(MOST_ROUNDS):
        asked = await _judge(sandbox, payload, answers)
        if not asked["wanted"]:
            return None if asked["failure"] is None else printable(asked["failure"])
        answered = await _answer(sandbox, code, payload, asked["wanted"])
        if isinstance(answered, str):
            return answered
        answers |= answered
    return "the tests kept asking for more"


async def _judge(sandbox: LazySandbox, payload: Any, answers: dict[str, Any]) -> dict[str, Any]:
    await sandbox.renew()
    given = {key: payload[key] for key in ("preamble", "tests", "function")} | {"answers": answers}
    said = await _run(sandbox, "judge", given)
    if isinstance(said, dict):
        return said
    if answers:  # no fault of the tests, which ran without them: an answer was too much for them
        return {"wanted": [], "failure": said}
    raise EnvironmentFault(f"the hidden tests of {payload['function']} don't run: {said}")


async def _answer(sandbox: LazySandbox, code: str, payload: Any, calls: list[str]) -> dict[str, Any] | str:
    """The solution's answer to each call, or what made it unable to answer. Whatever it printed is data."""
    await sandbox.renew()
    given = {"code": f"{payload['preamble']}\n{code}", "function": payload["function"], "calls": calls}
    said = await _run(sandbox, "answer", given)
    if isinstance(said, str):
        return said
    if isinstance(error := said.get("error"), str):
        return printable(error)
    found = said.get("answers")
    if not isinstance(found, list) or len(found) != len(calls) or not all(_is_answer(item) for item in found):
        return "Killed"
    return dict(zip(calls, found, strict=True))


def _is_answer(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and item[0] in ("value", "raised")


async def _run(sandbox: Sandbox, function: str, given: dict[str, Any]) -> dict[str, Any] | str:
    try:
        program = f"{_INSIDE}\n\n{function}(json.loads({json.dumps(given)!a}))\n"
    except RecursionError:
        return "Killed"
    result = await sandbox.run_python(program, timeout=TIMEOUT_S, max_output=_MAX_OUTPUT)
    if result.timed_out:
        return "Killed: no end"
    try:
        said = json.loads(result.stdout.rsplit(b"\n", 1)[-1])
    except (ValueError, RecursionError):
        return "Killed"
    return said if isinstance(said, dict) and not result.truncated else "Killed"
