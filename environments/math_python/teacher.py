"""An unreliable scripted teacher, whose demonstrations give a model from scratch the form of the task and part of its meaning.

Every third operation it mistranslates in the same way more often than not: a model that imitates it is therefore wrong about
them even when decoded greedily, and only reward can correct that. It also guesses, miscopies and garbles now and then.
"""

from __future__ import annotations

import random

from agentrl.environment import Episode, Task, tool_call
from environments.math_python.problems import OPERATIONS, Step, program, steps_of

P_GUESSES = 0.05
P_BIASED = 0.6
P_RANDOM = 0.1
P_MISCOPIES = 0.05
P_GARBLED = 0.05
BIASED_EVERY = 3
_NAMES = [operation.name for operation in OPERATIONS]


def solution(task: Task) -> list[str]:
    """The turns of a solution: compute each step with the tool, say the result."""
    payload = task.payload
    return [tool_call("python", code=program(payload["start"], steps_of(task))), payload["answer"]]


class Teacher:
    """The policy of one demonstration: called once a turn, it says the assistant's text."""

    def __init__(self, rng: random.Random, task: Task) -> None:
        self.rng = rng
        self.task = task

    def __call__(self, episode: Episode) -> str:
        rng, seen = self.rng, episode.last_observation.strip()
        if rng.random() < P_GUESSES:
            return str(rng.randint(0, 200))
        if not seen.lstrip("-").isdigit():
            steps = [self._mistranslate(step) for step in steps_of(self.task)]
            call = tool_call("python", code=program(self.task.payload["start"], steps))
            return call.replace("; x", "; y") if rng.random() < P_GARBLED else call
        return seen + str(rng.randint(0, 9)) if rng.random() < P_MISCOPIES else seen

    def _mistranslate(self, step: Step) -> Step:
        name, digit, phrasing = step
        index = _NAMES.index(name)
        if index % BIASED_EVERY == 0:
            if self.rng.random() < P_BIASED:
                name = _NAMES[(index + 1) % len(_NAMES)]
        elif self.rng.random() < P_RANDOM:
            name = self.rng.choice(_NAMES)
        return name, digit, phrasing
