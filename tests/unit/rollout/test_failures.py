"""What a worker says of failed episodes, and when it gives up."""

from __future__ import annotations

from uuid import UUID

import pytest

from agentrl.errors import EnvironmentFault, RunFailed
from agentrl.rollout.failures import HOPELESS, MAX_KINDS, Failures

ID = UUID(int=1)


def fault(task: int) -> str:
    return f"EnvironmentFault: environment 'e', task 't{task}', method 'count' raised KeyError: 'k' (e.py:9)"


def test_each_kind_is_told__with_its_count_at_every_tenth_power(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for number in range(100):
        failures.ended_well()
        failures.failed(ID, fault(number), by_environment=True)
    failures.failed(ID, "SandboxDied: gone", by_environment=False)
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
        failures.failed(ID, f"KeyError: {'x' * number}", by_environment=True)
    assert len(capsys.readouterr().out.splitlines()) == MAX_KINDS


def test_each_kind_is_told__errors_that_differ_in_numbers_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for number in range(9):
        failures.failed(ID, f"SandboxUnavailable: none within 60.{number} s: {number} in use", by_environment=False)
        failures.failed(ID, f"SandboxDied: docker container agentrl-{number:024x}: ended", by_environment=False)
    failures.failed(ID, "KeyError: 'k' (e.py:9)", by_environment=True)
    failures.failed(ID, "KeyError: 'k' (e.py:10)", by_environment=True)
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(("one_by_environment", "kind"), [(True, EnvironmentFault), (False, RunFailed)])
def test_told__is_bad_input_only_when_each_failed_by_the_environment(one_by_environment: bool, kind: type[Exception]) -> None:
    failures = Failures()
    failures.failed(ID, "the first", by_environment=one_by_environment)
    for number in range(HOPELESS - 1):
        assert failures.verdict is None
        failures.failed(ID, fault(number), by_environment=True)
    assert type(failures.verdict) is kind
    assert f"{HOPELESS} episodes failed and none ended well; the last one: EnvironmentFault" in str(failures.verdict)
    assert "e.py:9" in str(failures.verdict)
