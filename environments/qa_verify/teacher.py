"""An unreliable scripted teacher: of every third country it mostly says what is true of the next one."""

from __future__ import annotations

import random

from agentrl.environment import Episode, Task
from environments.qa_verify.questions import FACTS, answer

P_BIASED = 0.6
P_RANDOM = 0.15
BIASED_EVERY = 3
_COUNTRIES = list(FACTS)


class Teacher:
    """The policy of one demonstration: it says one answer."""

    def __init__(self, rng: random.Random, task: Task) -> None:
        self.rng = rng
        self.task = task

    def __call__(self, episode: Episode) -> str:
        country = str(self.task.payload["country"])
        index = _COUNTRIES.index(country)
        if index % BIASED_EVERY == 0:
            if self.rng.random() < P_BIASED:
                country = _COUNTRIES[(index + 1) % len(_COUNTRIES)]
        elif self.rng.random() < P_RANDOM:
            country = self.rng.choice(_COUNTRIES)
        return answer(country, self.task.payload["aspect"])
