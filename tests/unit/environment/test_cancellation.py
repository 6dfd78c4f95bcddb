"""A CancelledError ends an episode only when the episode is cancelled; else it is an error of the code that raised it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.environment import Environment, Episode, Message, Task, tool
from agentrl.environment.boundary import Overtime, invoke, named_faults
from agentrl.environment.turn import begin, take_turn
from agentrl.errors import EnvironmentFault


async def awaits_what_another_cancelled() -> None:
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    await shared


def loop_of_its_own() -> None:
    asyncio.run(awaits_what_another_cancelled())


async def never_ends() -> None:
    await asyncio.Event().wait()


async def time_limit_of_its_own() -> str:
    try:
        async with asyncio.timeout(0.01):
            await never_ends()
    except TimeoutError:
        return "in time"
    return "never"


async def call(function: Callable[..., Any], timeout_s: float = 5.0) -> Any:
    return await invoke("mine", "one", "look", function, timeout_s=timeout_s)


@pytest.mark.parametrize("function", [awaits_what_another_cancelled, loop_of_its_own])
async def test_cancellation_of_something_else__is_a_fault_with_its_place(function: Callable[..., Any]) -> None:
    with pytest.raises(
        EnvironmentFault,
        match=r"environment 'mine', task 'one', method 'look' raised CancelledError .*test_cancellation\.py:\d+",
    ):
        await call(function)


def test_cancellation__outside_of_a_loop_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="method 'tasks' raised CancelledError"), named_faults("mine", "one", "tasks"):
        raise asyncio.CancelledError


async def test_cancellation_of_the_episode__stays_one() -> None:
    task = asyncio.create_task(call(never_ends))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_time_limits__stay_time_limits() -> None:
    with pytest.raises(Overtime, match=re.escape("did not return within 0.01 s")):
        await call(never_ends, timeout_s=0.01)
    assert await call(time_limit_of_its_own) == "in time"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await call(never_ends)


class Shared(Environment):
    """Tools that wait for a task which all episodes share."""

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task("one", {}, split)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "look")]

    @tool(side_effects=False, parallel=True)
    async def look(self, episode: Episode) -> str:
        """Ask the common client."""
        await awaits_what_another_cancelled()
        return "seen"

    @tool(side_effects=False, parallel=True)
    async def leave(self, episode: Episode) -> str:
        """End the call by cancelling its own task."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "gone"

    async def reward(self, episode: Episode, sandbox: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("name", "where"), [("look", r"'look' raised CancelledError .*test_cancellation\.py:\d+"), ("leave", "'step' raised")]
)
async def test_parallel_calls__one_that_is_cancelled_is_a_fault(name: str, where: str) -> None:
    environment = Shared()
    episode, _ = await begin(environment, environment.tasks("train", 0, 1)[0], seed=0)
    text = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' * 2
    with pytest.raises(EnvironmentFault, match=where):
        await take_turn(environment, episode, text, truncated=False)
