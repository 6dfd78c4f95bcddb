"""Engines that fall behind are named: on the console and in the log, with how far and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import TrajectoryStore


@dataclass
class LaggingEngines:
    """``over``: policy updates that an engine may be behind, one more than between two of its loads.

    Each is named once, and again whenever it is twice as far behind as it was then.
    """

    store: TrajectoryStore
    run: int
    over: int
    say: Callable[[str], None]
    log: ProcessLog
    _told: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """After each step."""
        found = self.store.lagging_engines(self.run, self.over)
        self._told = {engine.engine: self._told.get(engine.engine, 0) for engine in found}
        for engine in found:
            if engine.behind < 2 * self._told[engine.engine]:
                continue
            self._told[engine.engine] = engine.behind
            why = f"; its last load failed: {engine.error:.300}" if engine.error else ""
            self.say(
                f"engine {engine.engine} lags: it holds version {engine.version}, {engine.behind} updates behind the newest, "
                f"since {engine.behind_s:.0f} s{why}. `agentrl db query engines` shows its loads."
            )
            self.log.warning(
                "engine lags", engine=engine.engine, version=engine.version, behind=engine.behind,
                seconds=round(engine.behind_s, 1), error=engine.error,
            )  # fmt: skip
