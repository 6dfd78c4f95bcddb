"""Runs a task's tests over the state that an agent left, in a clean sandbox, and reads their verdict."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import EnvironmentFault
from agentrl.types import Json
from environments.terminal_agent import state
from environments.terminal_agent.places import TESTS, VERDICTS, WORKDIR
from environments.terminal_agent.task import TerminalTask, shell_of
from sandboxes.contract import ExecResult, Sandbox

MAX_OUTPUT = 1 << 20
_ENVIRONMENT = {
    "TEST_DIR": TESTS,
    "HOME": "/tmp",
    # Modules that the agent left in the working directory must not stand in for the test runner's.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_PYTEST_SUMMARY = re.compile(r"=+ (.*\b\d+ (?:passed|failed|error).*) in [\d.]+s.* =+\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``value`` is what the tests gave, 0 to 1 in most tasks."""

    value: float
    detail: dict[str, Json] = field(default_factory=dict)


async def run_tests(task: TerminalTask, archive: bytes, sandbox: Sandbox) -> Verdict:
    """`EnvironmentFault` when the tests ended without a verdict, or with two."""
    dropped = await state.arrive(sandbox, archive)
    detail: dict[str, Json] = {"links dropped": dropped} if dropped else {}
    for name, data in task.tests.items():
        await sandbox.write_file(f"{TESTS}/{name}", data)
    shell = shell_of(task.tests[task.test_script])
    # Not the agent's files first on any path, and not its directory as the place that scripts are looked for.
    result = await sandbox.exec(
        [shell, "-c", f"cd {WORKDIR} && exec {shell} {TESTS}/{task.test_script}"],
        timeout=task.test_timeout_s,
        max_output=MAX_OUTPUT,
        env={**_ENVIRONMENT, **task.environment, **task.test_environment},
    )
    if result.timed_out:
        return Verdict(0.0, {**detail, "failure": f"the tests did not end within {task.test_timeout_s:g} s"})
    if task.verdict_by_exit_code:
        return Verdict(_by_exit_code(result), detail)
    return Verdict(await _written(sandbox, result), detail)


def _by_exit_code(result: ExecResult) -> float:
    summaries = _PYTEST_SUMMARY.findall(result.text)
    if not summaries:
        raise EnvironmentFault(f"the tests ended without pytest's summary (exit code {result.exit_code}): {_end(result)}")
    return float(result.exit_code == 0 and "passed" in summaries[-1] and not re.search("failed|error", summaries[-1]))


async def _written(sandbox: Sandbox, result: ExecResult) -> float:
    found = {}
    for name in ("reward.txt", "reward.json"):
        try:
            found[name] = await sandbox.read_file(f"{VERDICTS}/{name}", max_bytes=1 << 16)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"the verdict {name} can't be read: {error}") from error
    if len(found) != 1:
        how = "two verdicts" if found else f"no verdict (exit code {result.exit_code})"
        raise EnvironmentFault(f"the tests ended with {how}: {_end(result)}")
    ((name, data),) = found.items()
    try:
        value = _of_json(json.loads(data)) if name.endswith(".json") else float(data.decode())
    except (ValueError, RecursionError) as error:
        raise EnvironmentFault(f"the verdict {name} is no number: {data[:100]!r} ({error})") from error
    if not math.isfinite(value):
        raise EnvironmentFault(f"the verdict {name} is {value}")
    return value


def _of_json(given: Any) -> float:
    if isinstance(given, dict):
        given = given["reward"] if "reward" in given else next(iter(given.values())) if len(given) == 1 else None
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise ValueError('several rewards need one named "reward"')
    return float(given)


def _end(result: ExecResult) -> str:
    return (result.text + result.stderr.decode(errors="replace"))[-500:].strip() or "nothing was printed"
