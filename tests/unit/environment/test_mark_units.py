"""Units of credit as an environment marks them: a node of several turns, or a part of one."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.environment import Environment, Episode, Message, Step, Task, tool
from agentrl.environment.turn import begin, take_turn
from agentrl.errors import EnvironmentFault

TASK = Task("t/1", {})


class Nodes(Environment):
    """Thinking and acting are units of their own; turns that only look around belong to what came before."""

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "go")]

    @tool(side_effects=False)
    def look(self, episode: Episode) -> str:
        """Look around."""
        episode.mark_units()
        return "nothing"

    async def step(self, episode: Episode, text: str) -> Step:
        if "act:" in text:
            episode.mark_units(0, text.index("act:"))
        elif "past the end" in text:
            episode.mark_units(len(text))
        return await super().step(episode, text)

    async def respond(self, episode: Episode, text: str) -> str:
        return "go on"


async def test_marks__are_of_the_running_turn_alone() -> None:
    environment = Nodes()
    episode, _ = await begin(environment, TASK)
    texts = ["well. act: now", "plain", '<tool_call>{"name": "look", "arguments": {}}</tool_call>', "plain again"]
    outcomes = [await take_turn(environment, episode, text, truncated=False) for text in texts]
    assert [outcome.units for outcome in outcomes] == [(0, 6), None, (), None]


async def test_truncated_turn__is_a_unit() -> None:
    environment = Nodes()
    episode, _ = await begin(environment, TASK)
    assert (await take_turn(environment, episode, "act: n", truncated=True)).units is None


async def test_mark_outside_the_text__fault_names_the_position_and_the_length() -> None:
    environment = Nodes()
    episode, _ = await begin(environment, TASK)
    with pytest.raises(EnvironmentFault, match=r"'t/1' got position 12, but the turn's text has 12 characters"):
        await take_turn(environment, episode, "past the end", truncated=False)


@pytest.mark.parametrize("starts", [(-1,), (0.5,), (True,), ("0",)])
def test_marks_that_are_no_positions__fault(starts: tuple[Any, ...]) -> None:
    with pytest.raises(EnvironmentFault, match="whole numbers from 0"):
        Episode(TASK).mark_units(*starts)
