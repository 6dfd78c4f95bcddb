"""The wall time of a schedule on a trace when everything but model, tools and training costs nothing."""

from __future__ import annotations

import heapq
from collections import Counter
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
    dropped: int = 0
    carried_over: int = 0
    trained_by_lag: Counter[int] = field(default_factory=Counter)
    update_s: float = 0.0
    """Seconds in which the trainer was busy."""
    episodes_s: float = 0.0
    """Seconds of all episodes that ended."""
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

    @property
    def rollout_idle(self) -> float:
        """Share of the places for episodes in which nothing ran; what still runs at the end counts until then."""
        left = sum(self._seconds(episode) - (end - self.now) for end, episode in self._running)
        return 1 - (self.episodes_s + left) / (self.now * self.trace.slots)

    @property
    def trainer_idle(self) -> float:
        return 1 - self.update_s / self.now

    def _seconds(self, episode: int) -> float:
        turns = self.trace.seconds[episode]
        return sum(turns) + (len(turns) + 1) * self.trace.model_s

    def _open(self) -> None:
        outstanding = self._opened - self.trained - self.dropped
        most = self.pace.under_way or len(self.trace.seconds)
        while self._opened < len(self.trace.seconds) and len(self._running) < self.trace.slots and outstanding < most:
            heapq.heappush(self._running, (self.now + self._seconds(self._opened), self._opened))
            self._born.append(self.step)
            self._opened, outstanding = self._opened + 1, outstanding + 1

    def _end_one(self) -> None:
        self.now, episode = heapq.heappop(self._running)
        self.episodes_s += self._seconds(episode)
        group = episode // self.group
        self._ended[group] = self._ended.get(group, 0) + 1
        if self._ended[group] == self.group:
            born = min(self._born[group * self.group : (group + 1) * self.group])
            heapq.heappush(self._ready, (born, group))

    def _claim(self) -> None:
        pace = self.pace
        while self._ready and pace.lag_bound is not None and self.step - self._ready[0][0] > pace.lag_bound:
            heapq.heappop(self._ready)
            self.dropped += self.group
        ready = len(self._ready) * self.group
        left = pace.batch_max - self._held
        if ready < (pace.batch_min if pace.part is None else min(pace.part, left)):
            return
        taken = min(ready, left)
        for _ in range(taken // self.group):
            born, _ = heapq.heappop(self._ready)
            self.trained_by_lag[self.step - born] += self.group
        self._held += taken
        seconds = taken * self.trace.each_s
        if pace.part is None or self._held == pace.batch_max:
            seconds += self.trace.step_s + self.trace.publish_s
        if pace.schedule == "drop_last":
            self.carried_over += pace.batch_max - taken
        self.update_s, self._busy_until = self.update_s + seconds, self.now + seconds

    def _done(self, at: float) -> None:
        self.now, self._busy_until = at, None
        if self.pace.part is None or self._held == self.pace.batch_max:
            self.step, self.trained, self._held = self.step + 1, self.trained + self._held, 0
