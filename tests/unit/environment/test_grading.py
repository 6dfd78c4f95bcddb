"""The grader boundary: what counts as a verdict, and that no failure becomes a score."""

from __future__ import annotations

import asyncio
import math
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from agentrl.environment import Environment, Episode, Task
from agentrl.environment.grading import checked_reward, grade, is_gradable
from agentrl.errors import EnvironmentFault
from agentrl.types import Reward, Termination
from sandboxes.contract import SandboxUnavailable


class Judge(Environment):
    version = "7"

    def __init__(self, value: Any = None) -> None:
        self.value = value

    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


def ended() -> Episode:
    return Episode(Task("t/1", {}), ended=Termination.TERMINATED)


@pytest.mark.parametrize(
    ("value", "number", "success"),
    [
        (0.5, 0.5, None),
        (1, 1.0, None),
        (True, 1.0, True),
        (False, 0.0, False),
        (np.float32(0.5), 0.5, None),
        (np.int64(2), 2.0, None),
        (np.bool_(True), 1.0, True),
        (Reward(0.95, True, detail={"tests": 6}), 0.95, True),
        (Reward(-1.0), -1.0, None),
    ],
)
async def test_verdict__is_a_finite_float(value: Any, number: float, success: bool | None) -> None:
    reward = await grade(Judge(value), ended())
    assert (reward.value, reward.success) == (number, success)
    assert type(reward.value) is float
    assert reward.duration_s > 0


async def test_number__is_signed_by_its_environment_and_version() -> None:
    reward = await grade(Judge(1.0), ended())
    assert (reward.grader, reward.grader_version) == ("judge", "7")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (None, "NoneType None"),
        ("1.0", "str '1.0'"),
        (math.nan, "nan; a reward is finite"),
        (math.inf, "inf; a reward is finite"),
        (np.float32("nan"), "nan; a reward is finite"),
        (10**400, "inf; a reward is finite"),
        (Decimal("0.5"), "Decimal"),
        (1j, "complex"),
        ({"score": 0.9, "pred": "x"}, "a dict with keys 'score', 'pred'"),
        ([1.0], "list"),
        (np.array([1.0]), "ndarray"),
        (Reward(math.nan), "nan; a reward is finite"),
        (Reward(True), "bool True"),
        (Reward("1"), "str '1'"),  # type: ignore[arg-type]
        (Reward(1.0, success=1), "Reward.success is 1"),  # type: ignore[arg-type]
        (Reward(1.0, detail={"x": math.nan}), "detail is not JSON"),
        (Reward(1.0, detail={"x": object()}), "detail is not JSON"),
    ],
)
def test_anything_else__refused_naming_grader_and_task(value: Any, part: str) -> None:
    with pytest.raises(EnvironmentFault) as raised:
        checked_reward(value, Judge(), "t/1")
    assert str(raised.value).startswith("environment 'judge', task 't/1': reward() gave ")
    assert part in str(raised.value)


def test_detail_that_quotes_odd_characters__is_made_storable_and_not_refused() -> None:
    detail = {"said": "a\0b\ud800", "all": [("x\0",), {"k\0": 1}], "n": 0.5}
    reward = checked_reward(Reward(0.0, detail=detail), Judge(), "t/1")
    bad = "\N{REPLACEMENT CHARACTER}"
    assert reward.detail == {"said": f"a{bad}b{bad * 3}", "all": [[f"x{bad}"], {f"k{bad}": 1}], "n": 0.5}


async def test_grader_that_raises__is_an_error_and_never_a_score() -> None:
    with pytest.raises(EnvironmentFault, match=r"'judge', task 't/1', method 'reward' raised ValueError: no answer"):
        await grade(Judge(ValueError("no answer")), ended())


async def test_broken_grading_sandbox__propagates_as_infrastructure() -> None:
    with pytest.raises(SandboxUnavailable):
        await grade(Judge(SandboxUnavailable("none left")), ended())


async def test_slow_grader__does_not_hold_up_the_others() -> None:
    class Slow(Judge):
        grade_timeout_s = 0.1

        async def reward(self, episode: Episode, sandbox: Any) -> float:
            if self.value == "slow":
                await asyncio.Event().wait()
            return 1.0

    graders = [Slow("slow"), *(Slow("quick") for _ in range(7))]
    results = await asyncio.gather(*(grade(grader, ended()) for grader in graders), return_exceptions=True)
    assert isinstance(results[0], EnvironmentFault)
    assert "did not return within 0.1 s" in str(results[0])
    assert [reward.value for reward in results[1:] if isinstance(reward, Reward)] == [1.0] * 7


async def test_sync_grader__runs_in_a_thread_and_is_limited() -> None:
    class Blocking(Judge):
        grade_timeout_s = 0.1

        def reward(self, episode: Episode, sandbox: Any) -> Any:
            if self.value == "slow":
                threading.Event().wait()
            return True

    class Patient(Blocking):
        grade_timeout_s = 30.0

    assert (await grade(Patient(), ended())).success is True
    for _ in range(3):
        with pytest.raises(EnvironmentFault, match="did not return within"):
            await grade(Blocking("slow"), ended())
    assert (await grade(Patient(), ended())).success is True


async def test_running_episode__is_not_graded() -> None:
    with pytest.raises(ValueError, match="has not ended"):
        await grade(Judge(1.0), Episode(Task("t/1", {})))


def test_gradable_endings__natural_ones_and_truncated_ones_where_declared() -> None:
    class Lenient(Judge):
        grades_truncated = True

    assert [end for end in Termination if is_gradable(Judge(), end)] == [Termination.TERMINATED]
    assert [end for end in Termination if is_gradable(Lenient(), end)] == [
        end
        for end in Termination
        if end is Termination.TERMINATED or end.value.startswith("truncated_")
        if not end.value.endswith("_time")  # a slow machine is not a bad answer
    ]
