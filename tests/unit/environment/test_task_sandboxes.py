"""Environments whose tasks have sandboxes of their own."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.environment import Environment, Episode, Message, Task, tool, tool_call
from agentrl.environment.base import checked_tasks
from agentrl.environment.boxes import check_room, distinct_specs, specs_of
from agentrl.environment.demonstrate import play
from agentrl.errors import EnvironmentFault, UsageError
from sandboxes.contract import Sandbox, SandboxSpec
from sandboxes.local import UnsafeLocal
from sandboxes.pool import Pool
from sandboxes.stock import Member
from sandboxes.wear import is_spent, lasting

SPEC = SandboxSpec()


class Shelves(Environment):
    """Each task's sandbox has its own variable; the grader's too."""

    sandboxes = {"other": SandboxSpec(env={"SHELF": "other"})}  # noqa: RUF012

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task(str(number), {"shelf": number % 2}, split) for number in range(4)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "Which shelf?")]

    def sandbox_for(self, task: Task) -> Any:
        return SandboxSpec(env={"SHELF": str(task.payload["shelf"])})

    @tool(side_effects=False)
    async def shelf(self, episode: Episode) -> str:
        """Say which shelf."""
        return (await episode.sandbox.exec("echo $SHELF")).text

    async def reward(self, episode: Episode, sandbox: Sandbox) -> bool:
        seen = [turn.results[0].text.strip() for turn in episode.turns if turn.results]
        return seen == [(await sandbox.exec("echo $SHELF")).text.strip()] == [str(episode.task.payload["shelf"])]


async def test_sandbox_for__decides_of_the_episode_and_of_its_grading() -> None:
    environment = Shelves()
    pool = Pool(UnsafeLocal(), 2)
    for task in checked_tasks(environment, "train", 0, 4):
        played = await play(environment, task, lambda episode: "done" if episode.n_turns else tool_call("shelf"), pool)
        assert played.reward is not None
        assert played.reward.success
    await pool.close()


def test_distinct_specs__each_once() -> None:
    environment = Shelves()
    specs = distinct_specs(environment, checked_tasks(environment, "train", 0, 4))
    assert [spec.env["SHELF"] for spec in specs] == ["other", "0", "1"]


def test_specs__are_the_class_attribute_unless_overridden() -> None:
    class Plain(Shelves):
        sandbox = SPEC
        sandboxes = {}  # noqa: RUF012
        sandbox_for = Environment.sandbox_for

    assert distinct_specs(Plain(), checked_tasks(Plain(), "train", 0, 4)) == [
        lasting(SPEC, 2 * Plain.max_seconds, Plain.max_seconds)
    ]
    assert not Plain().has_sandbox_for
    assert Shelves().uses_sandboxes


@pytest.mark.parametrize("given", ["an image", 1 / 3])
def test_sandbox_for__of_a_wrong_kind_or_that_raises_names_its_place(given: Any) -> None:
    class Wrong(Shelves):
        def sandbox_for(self, task: Task) -> Any:
            return given if isinstance(given, str) else 1 / 0

    with pytest.raises(EnvironmentFault, match=r"task '0'.*sandbox_for.*test_task_sandboxes\.py:\d+\)"):
        specs_of(Wrong(), checked_tasks(Wrong(), "train", 0, 1)[0])


def test_more_sandboxes_than_may_exist__are_refused_with_both_numbers() -> None:
    check_room(Shelves(), 2)
    with pytest.raises(UsageError, match=r"uses 2 sandboxes at once, and sandbox\.pool_size=1 .* sandbox\.pool_size=2"):
        check_room(Shelves(), 1)


class Patient(Shelves):
    max_seconds = 5000.0
    grade_timeout_s = 6000.0


def test_sandbox_handed_out_last__outlives_the_longest_episode() -> None:
    environment = Patient()
    (task, *_) = checked_tasks(environment, "train", 0, 1)
    for spec in specs_of(environment, task).values():
        assert spec.idle_s == 6000.0
        sandbox = SimpleNamespace(spec=spec)
        last_moment = time.monotonic() - (spec.ttl_s - 2 * environment.max_seconds)
        assert is_spent(Member(sandbox, (), last_moment - 1.0)), "it has less before it"  # type: ignore[arg-type]
        assert not is_spent(Member(sandbox, (), last_moment + 60.0))  # type: ignore[arg-type]


def test_longer_times_of_a_spec__stay_and_nonsense_is_left_to_be_refused() -> None:
    assert lasting(SPEC, 1.0, 1.0) == SPEC
    longer = SandboxSpec(ttl_s=90_000.0, idle_s=80_000.0)
    assert lasting(longer, 6000.0, 6000.0) == longer
    wrong: Any = {"ttl_s": -1.0, "idle_s": "60"}
    assert lasting(SandboxSpec(**wrong), 6000.0, 6000.0) == SandboxSpec(**wrong)
