"""An unreliable scripted teacher: every third filter it mostly takes for the next one, and it garbles some calls."""

from __future__ import annotations

import random

from agentrl.environment import Episode, Task, tool_call
from environments.terminal_agent.generated import BY_NAME, FILTERS, Step, command, draw_parameter, steps_of

P_BIASED = 0.6
P_RANDOM = 0.08
P_GIVES_UP = 0.05
P_GARBLED = 0.05
BIASED_EVERY = 3
_NAMES = [one.name for one in FILTERS]


def solution(task: Task) -> list[str]:
    """The turns of a solution."""
    return [tool_call("bash", command=command(task.payload["file"], steps_of(task))), "done"]


class Teacher:
    """The policy of one demonstration: called once a turn, it says the assistant's text."""

    def __init__(self, rng: random.Random, task: Task) -> None:
        self.rng = rng
        self.task = task

    def __call__(self, episode: Episode) -> str:
        if episode.n_turns and (not episode.turns[-1].results or not episode.turns[-1].results[-1].is_error):
            return "done"
        if self.rng.random() < P_GIVES_UP:
            return "done"
        steps = [self._mistake(step) for step in steps_of(self.task)]
        call = tool_call("bash", command=command(self.task.payload["file"], steps))
        return call.replace('"}}', '"}', 1) if self.rng.random() < P_GARBLED else call

    def _mistake(self, step: Step) -> Step:
        name, parameter = step
        index = _NAMES.index(name)
        if index % BIASED_EVERY == 0:
            if self.rng.random() < P_BIASED:
                name = _NAMES[(index + 1) % len(_NAMES)]
        elif self.rng.random() < P_RANDOM:
            name = self.rng.choice(_NAMES)
        if name != step[0]:
            parameter = draw_parameter(self.rng, BY_NAME[name])
        return name, parameter
