"""An unreliable scripted teacher: it gives a model from scratch the form of a search, with two errors that reward corrects.

More often than not it stops one document early when a chain is long, and it often takes the seat of a company for its plant.
"""

from __future__ import annotations

import random

from agentrl.environment import Episode, Task, tool_call

P_STOPS_EARLY = 0.6
P_MISTAKES_PLANT = 0.35
P_RANDOM = 0.1
P_GARBLED = 0.04


def solution(task: Task) -> list[str]:
    """The turns of a solution: look each entity of the chain up, say the last one."""
    *looked_up, answer = task.payload["path"]
    return [*(tool_call("search", query=name) for name in looked_up), answer]


class Teacher:
    """The policy of one demonstration: called once a turn, it says the assistant's text."""

    def __init__(self, rng: random.Random, task: Task) -> None:
        self.rng = rng
        self.chain: list[str] = list(task.payload["chain"])
        self.at: str = task.payload["path"][0]
        self.looked = False

    def __call__(self, episode: Episode) -> str:
        rng = self.rng
        if self.looked:
            self.at = self._found(episode.last_observation)
        if not self.chain or (self.looked and len(self.chain) == 1 and self._long(episode) and rng.random() < P_STOPS_EARLY):
            return self.at
        self.looked = True
        call = tool_call("search", query=self.at)
        return call.replace('"}}', '"}', 1) if rng.random() < P_GARBLED else call

    def _found(self, document: str) -> str:
        """What the document says about the next relation; the names of a line of facts follow their relations."""
        facts = dict(fact.strip().split(" ", 1) for fact in document.partition(": ")[2].split(", ") if " " in fact.strip())
        relation = self.chain[0]
        if relation not in facts:  # the call was garbled, or another document came
            return self.at
        self.chain.pop(0)
        if relation == "plant" and self.rng.random() < P_MISTAKES_PLANT:
            return facts["seat"]
        return self.rng.choice(sorted(facts.values())) if self.rng.random() < P_RANDOM else facts[relation]

    @staticmethod
    def _long(episode: Episode) -> bool:
        return len(episode.task.payload["chain"]) == 3
