"""What the numbers of a run say needs a look, told while it goes on and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.monitor.terminal import say
from agentrl.store.contract import TrajectoryStore

TELL_S = 15.0
"""How often the store is asked."""
REST = 50
"""The longer the run, the longer the answer takes: the next question waits so many times as long."""


def fired(store: TrajectoryStore, run: str) -> Sequence[Mapping[str, Any]]:
    """The run's alerts, those that hold now first."""
    return store.query("alerts", run=run).records()


def said(alert: Mapping[str, Any]) -> str:
    """What is wrong, since when, by which number."""
    first, last = alert["first_step"], alert["last_step"]
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    return (
        f"{alert['severity']} {alert['alert']}, {where}: {alert['what']} "
        f"({alert['value']:.3g}, bound {alert['bound']:.3g}; {alert['look']})"
    )


@dataclass
class Alerts:
    """Tells an alert when it begins to hold, when it becomes critical, and at the tenth, hundredth ... step that has it."""

    run: str
    clock: Callable[[], float] = time.monotonic
    _told: dict[tuple[str, str], int] = field(default_factory=dict)
    """By alert and severity: the number of steps from which it is told again."""
    _due: float | None = None

    def look(self, store: TrajectoryStore) -> None:
        """Print what is new, if it is time."""
        now = self.clock()
        if self._due is not None and now < self._due:
            return
        found = fired(store, self.run)
        self._due = now + max(TELL_S, REST * (self.clock() - now))
        for alert in found:
            key = alert["alert"], alert["severity"]
            if alert["active"] and alert["steps"] >= self._told.get(key, 1):
                self._told[key] = 10 ** len(str(alert["steps"]))
                say(f"  {said(alert)}")
