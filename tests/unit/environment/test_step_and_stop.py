"""Full control of a turn, conditions that end an episode, and episodes with several sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.environment import Environment, Episode, Message, Step, Task, tool, tool_call
from agentrl.environment.demonstrate import Demonstration, play
from agentrl.errors import EnvironmentFault
from agentrl.types import Termination
from sandboxes.contract import SandboxSpec, Usage

TASK = Task("t/1", {})


class Talk(Environment):
    max_turns = 4

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "go")]

    @tool(side_effects=False)
    def add(self, left: int, right: int) -> int:
        """Add."""
        return left + right

    async def reward(self, episode: Episode, sandbox: Any) -> float:
        return float(episode.n_turns)


async def script(environment: Environment, *texts: str, pool: Any = None) -> Demonstration:
    return await play(environment, TASK, lambda episode: texts[episode.n_turns], pool)


async def test_step__answers_any_text_and_ends_the_episode() -> None:
    class Guess(Talk):
        async def step(self, episode: Episode, text: str) -> Step:
            episode.add_reward(0.5)
            if text == "7":
                return Step(done=True)
            return Step((Message("user", "higher" if int(text) < 7 else "lower"), Message("user", "again")))

    played = await script(Guess(), "3", "9", "7")
    assert [entry.content for entry in played.entries if isinstance(entry, Message)] == [
        "go",
        "higher",
        "again",
        "lower",
        "again",
    ]
    assert played.termination is Termination.TERMINATED
    assert played.reward is not None
    assert played.reward.value == 3.0


async def test_step_on_top_of_the_default__still_runs_tools() -> None:
    class Noted(Talk):
        async def step(self, episode: Episode, text: str) -> Step:
            step = await super().step(episode, text.replace("plus", "add"))
            return Step((*step.messages, Message("user", "noted")), step.done, step.calls, step.results)

    played = await script(Noted(), tool_call("plus", left=1, right=2), "bye")
    assert [entry.content for entry in played.entries if isinstance(entry, Message)] == ["go", "3", "noted"]


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("text", r"step\(\) must return a Step, not str"),
        (None, r"step\(\) must return a Step, not NoneType"),
        (Step(), "a Step that is not done has one Message or more"),
        (Step(("text",)), "a Step that is not done has one Message or more"),
    ],
)
async def test_step_with_other_result__fault_names_environment_and_task(returned: Any, why: str) -> None:
    class Odd(Talk):
        async def step(self, episode: Episode, text: str) -> Any:
            return returned

    with pytest.raises(EnvironmentFault, match=f"environment 'odd', task 't/1': {why}"):
        await script(Odd(), "x")


async def test_stop__ends_naturally_also_in_the_last_turn() -> None:
    class Short(Talk):
        def __init__(self, limit: int) -> None:
            self.limit = limit

        async def stop(self, episode: Episode) -> bool:
            return episode.n_turns >= self.limit

    call = tool_call("add", left=1, right=2)
    for limit in (2, 4):
        played = await script(Short(limit), *[call] * 4)
        assert played.termination is Termination.TERMINATED
        assert sum(isinstance(entry, str) for entry in played.entries) == limit
    assert (await script(Short(9), *[call] * 4)).termination is Termination.TRUNCATED_TURNS


async def test_stop_with_other_result__fault() -> None:
    class Odd(Talk):
        async def stop(self, episode: Episode) -> Any:
            return "no"

    with pytest.raises(EnvironmentFault, match=r"stop\(\) must return True or False, not 'no'"):
        await script(Odd(), tool_call("add", left=1, right=2))


class Box:
    usage = Usage()

    def __init__(self, spec: SandboxSpec, number: int) -> None:
        self.spec = spec
        self.id = f"box-{number}"

    async def ping(self) -> None: ...


class BoxPool:
    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.given: list[Box] = []
        self.held = 0

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0, first: bool = False) -> AsyncIterator[Any]:
        await asyncio.sleep(self.delay_s)
        self.given.append(Box(spec, len(self.given)))
        self.held += 1
        yield self.given[-1]
        self.held -= 1

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


class Two(Talk):
    """Talks to a database that lives beside its workspace."""

    sandbox = SandboxSpec(memory_mb=64)
    sandboxes = {"database": SandboxSpec(memory_mb=512)}  # noqa: RUF012 - as a user would write it

    @tool(side_effects=False)
    async def where(self, episode: Episode) -> str:
        """Name both sandboxes."""
        await episode.sandbox.ping()
        await episode.sandboxes["database"].ping()
        return f"{episode.sandbox.id} {episode.sandboxes['database'].id}"

    async def reward(self, episode: Episode, sandbox: Any) -> bool:
        assert episode.sandbox is sandbox
        await episode.sandboxes["database"].ping()
        return True


async def test_several_sandboxes__each_of_its_spec_and_clean_ones_for_the_grader() -> None:
    pool = BoxPool()
    played = await script(Two(), tool_call("where"), "bye", pool=pool)
    (observation,) = (entry.content for entry in played.entries[1:] if isinstance(entry, Message))
    assert set(observation.split()) == {"box-0", "box-1"}
    assert sorted(box.spec.memory_mb for box in pool.given) == [64, 64, 512, 512]
    assert pool.held == 0


async def test_wait_for_a_sandbox__is_no_slow_tool() -> None:
    environment = Two()
    environment.tool_timeout_s = 0.3
    played = await script(environment, tool_call("where"), "bye", pool=BoxPool(delay_s=0.2))
    assert "no answer" not in str(played.entries)
