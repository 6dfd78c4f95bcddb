"""An unreliable scripted teacher, whose demonstrations give a model from scratch the form of the task and part of its meaning.

It succeeds about half of the time. A third of the operations it mistranslates in the same way more often than not: a model that
imitates it is therefore wrong about them even when decoded greedily, and only reward can correct that. Besides, it makes random
mistakes, sometimes acts before reading, often gives up after a failed test, and garbles some calls.
"""

from __future__ import annotations

import random

from agentrl.environment import Episode, Task, tool_call
from environments.code_agent.tasks import OPERATIONS, Step, solution, steps_of

P_READS = 0.85
P_STOPS_AFTER_PASS = 0.8
P_GIVES_UP_AFTER_FAIL = 0.35
P_BIASED = 0.58
P_RANDOM = 0.12
P_GARBLED = 0.05
BIASED_EVERY = 3
_NAMES = [operation.name for operation in OPERATIONS]


class Teacher:
    """The policy of one demonstration: called once a turn, it says the assistant's text."""

    def __init__(self, rng: random.Random, task: Task) -> None:
        self.rng = rng
        self.task = task
        self.knows = rng.random() < P_READS
        self.has_to_read = self.knows

    def __call__(self, episode: Episode) -> str:
        rng, seen = self.rng, episode.last_observation
        if self.has_to_read:
            self.has_to_read = False
            return tool_call("read", path=self.task.payload["file"])
        if seen.startswith("passed") and rng.random() < P_STOPS_AFTER_PASS:
            return "done"
        if seen.startswith("FAIL") and rng.random() < P_GIVES_UP_AFTER_FAIL:
            return "done"
        steps = steps_of(self.task) if self.knows else self._guess()
        code = solution(self.task.payload["function"], [self._mistranslate(step) for step in steps])
        return self._garble(tool_call("python", code=code))

    def _guess(self) -> list[Step]:
        return [(self.rng.choice(_NAMES), self.rng.randint(2, 9), 0) for _ in range(self.rng.choice((1, 2)))]

    def _mistranslate(self, step: Step) -> Step:
        name, digit, phrasing = step
        index = _NAMES.index(name)
        if index % BIASED_EVERY == 0:
            if self.rng.random() < P_BIASED:
                name = _NAMES[(index + 1) % len(_NAMES)]
        elif self.rng.random() < P_RANDOM:
            name = self.rng.choice(_NAMES)
        return name, digit, phrasing

    def _garble(self, call: str) -> str:
        if self.rng.random() >= P_GARBLED:
            return call
        if self.rng.random() < 0.5:
            return call.replace('"}}', '"}', 1)
        return call.replace("; return x", "", 1)
