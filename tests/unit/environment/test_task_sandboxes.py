"""Environments whose tasks have sandboxes of their own."""

from __future__ import annotations

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

    assert distinct_specs(Plain(), checked_tasks(Plain(), "train", 0, 4)) == [SPEC]
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
