"""What a worker says of failed episodes, and when it gives up."""

from __future__ import annotations

from uuid import UUID

import pytest

from agentrl.errors import BrokenDistribution, EngineError, EnvironmentFault, RunFailed
from agentrl.monitor.failures import BROKEN_SHARE, HOPELESS, MAX_KINDS, RECENT, Failures

ID = UUID(int=1)
FAULT = EnvironmentFault("raised")


def fault(task: int) -> str:
    return f"EnvironmentFault: environment 'e', task 't{task}', method 'count' raised KeyError: 'k' (e.py:9)"


def test_each_kind_is_told__with_its_count_at_every_tenth_power(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for number in range(100):
        failures.ended_well()
        failures.failed(ID, fault(number), FAULT)
    failures.failed(ID, "SandboxDied: gone", None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        f"episode {ID} failed",
        "10 of 20 episodes failed like this",
        "100 of 200 episodes failed like this",
        f"episode {ID} failed",
    ]
    assert "e.py:9" in lines[1]
    assert failures.verdict is None, "some ended well"


def test_each_kind_is_told__but_not_one_line_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for number in range(1000):
        failures.failed(ID, f"KeyError: {'x' * number}", FAULT)
    assert len(capsys.readouterr().out.splitlines()) == MAX_KINDS


def test_each_kind_is_told__errors_that_differ_in_numbers_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for number in range(9):
        failures.failed(ID, f"SandboxUnavailable: none within 60.{number} s: {number} in use", None)
        failures.failed(ID, f"SandboxDied: docker container agentrl-{number:024x}: ended", None)
    failures.failed(ID, "KeyError: 'k' (e.py:9)", FAULT)
    failures.failed(ID, "KeyError: 'k' (e.py:10)", FAULT)
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(("one_by_environment", "kind"), [(True, EnvironmentFault), (False, RunFailed)])
def test_told__is_bad_input_only_when_each_failed_by_the_environment(one_by_environment: bool, kind: type[Exception]) -> None:
    failures = Failures()
    failures.failed(ID, "the first", FAULT if one_by_environment else None)
    for number in range(HOPELESS - 1):
        assert failures.verdict is None
        failures.failed(ID, fault(number), FAULT)
    assert type(failures.verdict) is kind
    assert f"{HOPELESS} episodes failed and none ended well; the last one: EnvironmentFault" in str(failures.verdict)
    assert "e.py:9" in str(failures.verdict)


def test_engine_health__broken_numbers_in_many_recent_episodes_end_the_run() -> None:
    failures, broken = Failures(), BrokenDistribution("version 3 gave a distribution that is not finite")
    for _ in range(RECENT):
        failures.ended_well()
    for number in range(int(BROKEN_SHARE * RECENT)):
        assert failures.verdict is None, f"after {number}"
        failures.failed(ID, f"BrokenDistribution: {broken}", broken)
    assert isinstance(failures.verdict, RunFailed)
    assert "10 of the last 40 episodes" in str(failures.verdict)
    assert "version 3" in str(failures.verdict)


def test_engine_health__one_in_ten_and_engines_that_are_away_do_not() -> None:
    failures = Failures()
    for number in range(3 * RECENT):
        if number % 10 == 0:
            failures.failed(ID, "BrokenDistribution: nan", BrokenDistribution("nan"))
        elif number % 2:
            failures.failed(ID, "EngineError: no answer", EngineError("no answer"))
        else:
            failures.ended_well()
    assert failures.verdict is None
