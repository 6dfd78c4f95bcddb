"""The wall time of a schedule on a trace when everything but model, tools and training costs nothing."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field

from agentrl.config.schedule import Pace
from benchmarks.schedules.timed import Trace


@dataclass
class Ideal:
    """Events in order of time: an episode ends, or the trainer is done with what it holds.

    What gets out of range while it runs, or while it waits for its group, is stopped and starts again; what was ready is lost.
    """

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
    _new: int = 0
    """Episodes of the trace that were opened at least once."""
    _opened: int = 0
    _held: int = 0
    _busy_until: float | None = None
    _running: list[tuple[float, int]] = field(default_factory=list)
    _born: dict[int, int] = field(default_factory=dict)
    _again: deque[int] = field(default_factory=deque)
    _waiting: dict[int, set[int]] = field(default_factory=dict)
    """Episodes that ended, by group."""
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
        most = (self.trace.steps - self.step) * self.pace.batch_max  # nothing is generated that no update is left for
        if self.pace.under_way is not None:
            most = min(most, self.pace.under_way)
        while len(self._running) < self.trace.slots and outstanding < most:
            if self._again:
                episode = self._again.popleft()
            elif self._new < len(self.trace.seconds):
                episode, self._new = self._new, self._new + 1
            else:
                return
            heapq.heappush(self._running, (self.now + self._seconds(episode), episode))
            self._born[episode] = self.step
            self._opened, outstanding = self._opened + 1, outstanding + 1

    def _end_one(self) -> None:
        self.now, episode = heapq.heappop(self._running)
        self.episodes_s += self._seconds(episode)
        group = episode // self.group
        members = self._waiting.setdefault(group, set())
        members.add(episode)
        if len(members) == self.group:
            heapq.heappush(self._ready, (min(self._born[member] for member in members), group))
            del self._waiting[group]

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
            self._stop_stale()

    def _stop_stale(self) -> None:
        for end, episode in [entry for entry in self._running if self._is_stale(entry[1])]:
            self._running.remove((end, episode))
            self.episodes_s += self._seconds(episode) - (end - self.now)
            self._start_again(episode)
        heapq.heapify(self._running)
        for members in self._waiting.values():
            for episode in [member for member in members if self._is_stale(member)]:
                members.remove(episode)
                self._start_again(episode)

    def _is_stale(self, episode: int) -> bool:
        return self.pace.lag_bound is not None and self.step - self._born[episode] > self.pace.lag_bound

    def _start_again(self, episode: int) -> None:
        self.dropped += 1
        self._again.append(episode)
