"""Scripted policies play with the same turns and grading as a model, in sandboxes from a pool."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.environment import Environment, Episode, Message, Policy, Task, tool
from agentrl.environment.base import checked_tasks
from agentrl.environment.demonstrate import collect, play
from agentrl.errors import EnvironmentFault, UsageError
from agentrl.types import Termination
from sandboxes.contract import SandboxDied, SandboxError, SandboxSpec, Usage


class Counting(Environment):
    """Say ``next`` until the counter reaches the task's number."""

    max_turns = 5

    def tasks(self, split: str, seed: int, n: int) -> Sequence[Task]:
        return [Task(f"{seed}/{i}", {"goal": i % 7}, split) for i in range(n)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("system", "count"), Message("user", str(task.payload["goal"]))]

    @tool
    async def next(self, episode: Episode) -> int:
        """Count one up."""
        episode.state.count = getattr(episode.state, "count", 0) + 1
        return int(episode.state.count)

    async def reward(self, episode: Episode, sandbox: Any) -> bool:
        return bool(getattr(episode.state, "count", 0) == episode.task.payload["goal"])

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        off_by = rng.choice((0, 0, 1))

        def policy(episode: Episode) -> str:
            if episode.n_turns < task.payload["goal"] + off_by:
                return '<tool_call>{"name": "next", "arguments": {}}</tool_call>'
            return "done"

        return policy


async def test_play__entries_are_prompt_turns_and_observations_in_order() -> None:
    task = Task("x", {"goal": 1})
    policy = Counting().demonstrator(random.Random(0), task)
    demonstration = await play(Counting(), task, policy)
    call = '<tool_call>{"name": "next", "arguments": {}}</tool_call>'
    prompt = (Message("system", "count"), Message("user", "1"))
    assert demonstration.entries[:4] == (*prompt, call, Message("tool", "1", name="next"))
    assert demonstration.entries[-1] == "done"
    assert demonstration.termination is Termination.TERMINATED
    assert demonstration.reward is not None


async def test_play_out_of_turns__is_not_graded_and_ends_with_the_last_turn() -> None:
    task = Task("x", {"goal": 9})
    demonstration = await play(Counting(), task, Counting().demonstrator(random.Random(0), task))
    assert demonstration.termination is Termination.TRUNCATED_TURNS
    assert demonstration.reward is None
    assert sum(isinstance(entry, str) for entry in demonstration.entries) == 5
    assert isinstance(demonstration.entries[-1], str)


async def test_collect__is_in_task_order_and_the_same_for_the_same_seed() -> None:
    first = await collect(Counting(), 3, 20, concurrency=8)
    assert [demonstration.task.id for demonstration in first] == [f"3/{i}" for i in range(20)]
    assert first == [
        demonstration if demonstration.reward is None else _with_duration(demonstration, other)
        for demonstration, other in zip(await collect(Counting(), 3, 20, concurrency=2), first, strict=True)
    ]
    successes = {demonstration.reward.success for demonstration in first if demonstration.reward}
    assert successes == {True, False}


def _with_duration(demonstration: Any, other: Any) -> Any:
    from dataclasses import replace

    return replace(demonstration, reward=replace(demonstration.reward, duration_s=other.reward.duration_s))


class Box:
    """A sandbox that only counts its pings."""

    id = "box"
    usage = Usage()

    def __init__(self) -> None:
        self.pings = 0
        self.broken = False

    async def ping(self) -> None:
        self.pings += 1
        if self.broken:
            raise SandboxDied("broken")


class Boxes:
    """A pool that hands out boxes of its own and records when each is held."""

    def __init__(self) -> None:
        self.held: list[Box] = []
        self.boxes: list[Box] = []
        self.most = 0
        self.log: list[str] = []

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0, first: bool = False) -> AsyncIterator[Any]:
        box = Box()
        self.boxes.append(box)
        self.held.append(box)
        self.most = max(self.most, len(self.held))
        self.log.append("acquire first" if first else "acquire")
        yield box
        self.held.remove(box)
        self.log.append("release")

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


class Boxed(Counting):
    """Uses its sandbox at the start, and the grading one for its verdict."""

    sandbox = SandboxSpec()

    async def setup(self, episode: Episode) -> None:
        await episode.sandbox.ping()

    async def reward(self, episode: Episode, sandbox: Any) -> bool:
        await sandbox.ping()
        return True


async def test_grading__has_another_sandbox_taken_after_the_first_was_given_back() -> None:
    pool = Boxes()
    demonstration = await play(Boxed(), Task("x", {"goal": 0}), lambda episode: "done", pool)
    assert demonstration.reward is not None
    assert pool.log == ["acquire", "release", "acquire first", "release"]
    assert [box.pings for box in pool.boxes] == [1, 1]


async def test_sandbox_that_nobody_uses__is_never_taken() -> None:
    class Idle(Counting):
        sandbox = SandboxSpec()

    pool = Boxes()
    await play(Idle(), Task("x", {"goal": 0}), lambda episode: "done", pool)
    assert pool.log == []


class Repeatable(Boxed):
    """All that it does stays in the episode."""

    @tool(side_effects=False)
    async def next(self, episode: Episode) -> int:
        """Count one up."""
        episode.state.count = getattr(episode.state, "count", 0) + 1
        return int(episode.state.count)


class Breaking(Boxes):
    """The sandboxes of these numbers die at their first ping."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers = numbers

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0, first: bool = False) -> AsyncIterator[Any]:
        async with super().acquire(spec, timeout=timeout, first=first) as box:
            box.broken = len(self.boxes) in self.numbers
            yield box


async def test_collect__plays_an_episode_again_whose_sandbox_broke() -> None:
    whole, pool, done = await collect(Repeatable(), 3, 12, Boxes()), Breaking(5, 9), []
    with_deaths = await collect(Repeatable(), 3, 12, pool, on_progress=done.append)
    assert with_deaths == [
        _with_duration(first, again) if first.reward else first for first, again in zip(whole, with_deaths, strict=True)
    ]
    assert done == list(range(1, 13))
    assert sum(box.broken and box.pings == 1 for box in pool.boxes) == 2, "the control: two died"
    assert pool.held == []


@pytest.mark.parametrize(("environment", "sandboxes"), [(Boxed(), 1), (Repeatable(), 3)])
async def test_collect__gives_up_where_repeating_is_not_allowed_or_does_not_help(
    environment: Environment, sandboxes: int
) -> None:
    pool = Breaking(*range(1, 100))
    with pytest.raises(ExceptionGroup) as raised:
        await collect(environment, 3, 1, pool)
    assert isinstance(raised.value.exceptions[0], SandboxDied)
    assert len(pool.boxes) == sandboxes


async def test_task_that_a_tool_left_behind__gets_no_sandbox_after_its_episode() -> None:
    ended = asyncio.Event()

    class Forgetful(Counting):
        sandbox = SandboxSpec()
        left: asyncio.Task[None]

        @tool
        async def leave(self, episode: Episode) -> str:
            """Start something and do not wait for it."""

            async def later() -> None:
                await ended.wait()
                await episode.sandbox.ping()

            self.left = asyncio.ensure_future(later())
            return "left"

    pool, environment = Boxes(), Forgetful()
    turns = ['<tool_call>{"name": "leave", "arguments": {}}</tool_call>', "done"]
    await play(environment, Task("x", {"goal": 0}), lambda episode: turns[episode.n_turns], pool)
    ended.set()
    with pytest.raises(SandboxError, match="after its episode"):
        await environment.left
    assert pool.log == []


async def test_collect__holds_no_more_sandboxes_than_asked() -> None:
    pool = Boxes()
    await collect(Boxed(), 0, 12, pool, concurrency=3)
    assert 1 <= pool.most <= 3


async def test_environment_with_sandbox_and_no_pool__fault() -> None:
    with pytest.raises(EnvironmentFault, match="needs a sandbox"):
        await play(Boxed(), Task("x", {"goal": 0}), lambda episode: "done", None)


async def test_policy_that_raises__fault_names_demonstrator() -> None:
    def policy(episode: Episode) -> str:
        raise IndexError("script is over")

    with pytest.raises(EnvironmentFault, match=r"task 'x', method 'demonstrator' raised IndexError"):
        await play(Counting(), Task("x", {"goal": 0}), policy)


def test_environment_without_demonstrator__says_so() -> None:
    assert Counting().can_demonstrate
    assert not Environment().can_demonstrate
    with pytest.raises(UsageError, match="no demonstrator"):
        Environment().demonstrator(random.Random(0), Task("x", {}))


@pytest.mark.parametrize(
    ("tasks", "part"),
    [
        ([], "returned no task"),
        ([Task("", {})], "non-empty id"),
        ([{"id": "a"}], "not a Task"),
        ([Task("a", {}), Task("a", {})], "id 'a' appears twice"),
        ([Task("a", {}, "heldout")], "says split 'heldout'"),
        (None, "method 'tasks' raised TypeError"),
    ],
)
def test_bad_tasks__fault_names_environment(tasks: Any, part: str) -> None:
    class Careless(Environment):
        def tasks(self, split: str, seed: int, n: int) -> Any:
            return tasks

    with pytest.raises(EnvironmentFault, match="environment 'careless'") as raised:
        checked_tasks(Careless(), "train", 0, 5)
    assert part in str(raised.value)


async def test_demonstrator_that_raises__is_named_with_its_task() -> None:
    class Faulty(Counting):
        def demonstrator(self, rng: random.Random, task: Task) -> Policy:
            raise IndexError("no such demonstration")

    with pytest.raises(ExceptionGroup) as raised:
        await collect(Faulty(), 0, 2)
    fault = raised.value.exceptions[0]
    assert isinstance(fault, EnvironmentFault)
    assert "'demonstrator' raised IndexError: no such demonstration" in str(fault)
