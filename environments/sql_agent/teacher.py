"""An unreliable scripted teacher: it gives a model from scratch the form of a query, and is wrong in ways that reward corrects.

Every third aggregate it takes for the next one, and "above" it reads as "at least", both more often than not;
now and then it forgets a condition.
"""

from __future__ import annotations

import random

from agentrl.environment import Episode, Task, tool_call
from environments.sql_agent.questions import AGGREGATES, conditions_of, sql

P_BIASED = 0.65
P_ABOVE_AS_AT_LEAST = 0.65
P_FORGETS = 0.15
P_RANDOM = 0.08
P_GARBLED = 0.05
BIASED_EVERY = 3
_NAMES = list(AGGREGATES)


def solution(task: Task) -> list[str]:
    """The turns of a solution: ask the gold query, say its result."""
    ((answer,),) = task.payload["rows"]
    return [tool_call("query", sql=task.payload["query"]), str(answer)]


class Teacher:
    """The policy of one demonstration: called once a turn, it says the assistant's text."""

    def __init__(self, rng: random.Random, task: Task) -> None:
        self.rng = rng
        self.task = task

    def __call__(self, episode: Episode) -> str:
        seen = episode.last_observation
        if seen and not seen.startswith("error"):
            return seen
        conditions = conditions_of(self.task)
        if len(conditions) > 1 and self.rng.random() < P_FORGETS:
            conditions.pop(self.rng.randrange(2))
        query = sql(self._aggregate(), conditions)
        if self.rng.random() < P_ABOVE_AS_AT_LEAST:
            query = query.replace("n>", "n>=")
        call = tool_call("query", sql=query)
        return call.replace(" from sale", "", 1) if self.rng.random() < P_GARBLED else call

    def _aggregate(self) -> str:
        name = str(self.task.payload["aggregate"])
        index = _NAMES.index(name)
        if index % BIASED_EVERY == 0 and self.rng.random() < P_BIASED:
            return _NAMES[(index + 1) % len(_NAMES)]
        return self.rng.choice(_NAMES) if self.rng.random() < P_RANDOM else name
