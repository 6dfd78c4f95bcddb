"""What was not trained on, by reason, told while a run goes on and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentrl.monitor.terminal import say
from agentrl.store.contract import TrajectoryStore
from agentrl.types import Purpose

TELL_S = 30.0
"""How often the store is asked."""


def dropped(store: TrajectoryStore, run: str) -> Mapping[str, int]:
    """Reason -> training trajectories, the most frequent first."""
    counts: dict[str, int] = {}
    for row in store.query("dropped_by_reason", run=run).records():
        if row["purpose"] == Purpose.TRAIN:
            counts[row["reason"]] = counts.get(row["reason"], 0) + row["trajectories"]
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def said(counts: Mapping[str, int]) -> str:
    """``"stale 12, infrastructure 6"``."""
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


@dataclass
class Drops:
    """Tells the counts so far when there are more than were told, at most every `TELL_S`."""

    run: str
    clock: Callable[[], float] = time.monotonic
    _told: Mapping[str, int] = field(default_factory=dict)
    _asked: float | None = None

    def look(self, store: TrajectoryStore) -> None:
        """Print a line if it is time and there is something new."""
        now = self.clock()
        if self._asked is not None and now - self._asked < TELL_S:
            return
        self._asked = now
        counts = dropped(store, self.run)
        if counts != self._told:
            self._told = counts
            say(f"  dropped so far  {said(counts)}")
