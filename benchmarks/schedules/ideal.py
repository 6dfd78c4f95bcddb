"""The wall time of a schedule on a trace when everything but model, tools and training costs nothing."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from agentrl.config.schedule import Pace
from benchmarks.schedules.timed import Trace


@dataclass
class Ideal:
    """Events in order of time: an episode ends, or the trainer is done with what it holds."""

    trace: Trace
    pace: Pace
    group: int
    now: float = 0.0
    step: int = 0
    trained: int = 0
    _opened: int = 0
    _held: int = 0
    _busy_until: float | None = None
    _running: list[tuple[float, int]] = field(default_factory=list)
    _born: list[int] = field(default_factory=list)
    _ended: dict[int, int] = field(default_factory=dict)
    _ready: list[tuple[int, int]] = field(default_factory=list)
    """(version, group), oldest first."""

    def run(self) -> Ideal:
        while self.step < self.trace.steps:
            self._open()
            if self._busy_until is None:
                self._claim()
            ends = self._running[0][0] if self._running else float("inf")
            if self._busy_until is not None and self._busy_until <= ends:
                self._done(self._busy_until)
            else:
                self._end_one()
        return self

    def _open(self) -> None:
        outstanding = self._opened - self.trained
        most = self.pace.under_way or len(self.trace.seconds)
        turns = len(self.trace.seconds[0]) + 1
        while self._opened < len(self.trace.seconds) and len(self._running) < self.trace.slots and outstanding < most:
            seconds = sum(self.trace.seconds[self._opened]) + turns * self.trace.model_s
            heapq.heappush(self._running, (self.now + seconds, self._opened))
            self._born.append(self.step)
            self._opened, outstanding = self._opened + 1, outstanding + 1

    def _end_one(self) -> None:
        self.now, episode = heapq.heappop(self._running)
        group = episode // self.group
        self._ended[group] = self._ended.get(group, 0) + 1
        if self._ended[group] == self.group:
            born = min(self._born[group * self.group : (group + 1) * self.group])
            heapq.heappush(self._ready, (born, group))

    def _claim(self) -> None:
        pace, ready = self.pace, len(self._ready) * self.group
        left = pace.batch_max - self._held
        if ready < (pace.batch_min if pace.part is None else min(pace.part, left)):
            return
        taken = min(ready, left)
        for _ in range(taken // self.group):
            heapq.heappop(self._ready)
        self._held += taken
        self._busy_until = self.now + taken * self.trace.each_s
        if pace.part is None or self._held == pace.batch_max:
            self._busy_until += self.trace.step_s + self.trace.publish_s

    def _done(self, at: float) -> None:
        self.now, self._busy_until = at, None
        if self.pace.part is None or self._held == self.pace.batch_max:
            self.step, self.trained, self._held = self.step + 1, self.trained + self._held, 0
