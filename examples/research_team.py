"""A lead that sends scouts: sub-agents with a prompt and a tool of their own, and a history that is compacted.

    agentrl env play examples/research_team.py:ResearchTeam
    agentrl train --env examples/research_team.py:ResearchTeam --name team
    agentrl show latest --run team
    agentrl db query sub_agents --run team

The lead is asked which numbers are in some rooms. It can't look itself; `send` starts a scout, which looks and reports. After
each report the lead's history is replaced by the task and the reports so far. Scouts have no reward of their own: they earn
what the lead earns.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl.environment import Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, ToolError, tool, tool_call

ROOMS = ("red", "blue", "green")
CALLS = ('<tool_call>{"name": "send", "arguments": {"room": "', '"}}</tool_call>', tool_call("look"))


class Scout(Environment):
    """Looks into one room and reports the number there."""

    max_turns = 2
    max_turn_tokens = 48

    def messages(self, task: Task) -> list[Message]:
        return [
            Message("system", "You are a scout."),
            Message("user", f"Report the number in the {task.payload['room']} room."),
        ]

    @tool(side_effects=False)
    def look(self, episode: Episode) -> str:
        """Look into the room."""
        return f"The number is {episode.task.payload['number']}."

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        turns = [tool_call("look"), str(task.payload["number"])]
        return lambda episode: turns[episode.n_turns]


class ResearchTeam(Environment):
    """Find the numbers of the rooms by sending scouts."""

    sub_agents: Mapping[str, Environment] = {"scout": Scout()}
    max_sub_agents = 4
    max_turns = 4
    max_turn_tokens = 64
    max_tokens = 1500
    tokenizer_hints = TokenizerHints(split=r"\d| ", scaffold=(*CALLS, *ROOMS))
    run_defaults: ClassVar[Mapping[str, Any]] = {"model.max_context": 256}

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        rng, tasks = random.Random(f"{split}/{seed}"), []
        while len(tasks) < n:
            rooms = {room: rng.randint(10, 99) for room in rng.sample(ROOMS, 2)}
            if (sum(rooms.values()) % 4 == 0) == (split == "heldout"):
                tasks.append(Task(f"{split}/{len(tasks)}", {"rooms": rooms}, split))
        return tasks

    def messages(self, task: Task) -> list[Message]:
        rooms = " and ".join(task.payload["rooms"])
        return [Message("user", f"Which numbers are in the rooms {rooms}? Send a scout into each, then answer.")]

    @tool(side_effects=False)
    async def send(self, episode: Episode, room: str) -> str:
        """Send a scout into a room.

        Args:
            room: The room's name.
        """
        rooms = episode.task.payload["rooms"]
        if room not in rooms:
            raise ToolError(f"there is no {room} room")
        scout = await episode.sub_agent("scout", {"room": room, "number": rooms[room]})
        reports = vars(episode.state).setdefault("reports", {})
        reports[room] = scout.turns[-1].text
        return f"{room} {reports[room]}"

    async def compact(self, episode: Episode) -> Sequence[Message] | None:
        reports = getattr(episode.state, "reports", None)
        if not reports:
            return None
        return [*self.messages(episode.task), Message("user", "Reports: " + said(reports))]

    async def reward(self, episode: Episode, sandbox: object) -> Reward:
        rooms = episode.task.payload["rooms"]
        right = sum(f"{room} {number}" in episode.turns[-1].text for room, number in rooms.items())
        return Reward(right / len(rooms), right == len(rooms))

    def gold(self, task: Task) -> Sequence[str]:
        rooms = task.payload["rooms"]
        return [*(tool_call("send", room=room) for room in rooms), said(rooms)]

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        turns = self.gold(task)
        return lambda episode: turns[episode.n_turns]


def said(numbers: dict[str, object]) -> str:
    return ", ".join(f"{room} {number}" for room, number in numbers.items())
