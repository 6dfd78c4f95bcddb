"""An engine that lags is named once, and again when it is twice as far behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.monitor.log import ProcessLog
from agentrl.store.loads import LaggingEngine
from agentrl.trainer.lagging import LaggingEngines


class Store:
    found: tuple[LaggingEngine, ...] = ()

    def lagging_engines(self, run: int, over: int) -> list[LaggingEngine]:
        return [engine for engine in self.found if engine.behind > over]


def behind(updates: int, error: str | None = None) -> LaggingEngine:
    return LaggingEngine("http://a", 7, updates, 12.3, error)


def looking(folder: Path) -> tuple[Any, list[str], LaggingEngines]:
    store: Any = Store()
    said: list[str] = []
    return store, said, LaggingEngines(store, 1, 1, said.append, ProcessLog(folder, "trainer"))


def test_lagging_engine__is_named_with_version_lag_and_reason(tmp_path: Path) -> None:
    store, said, lagging = looking(tmp_path)
    lagging.look()
    store.found = (behind(2, "no space left"),)
    lagging.look()
    (line,) = said
    for part in ("http://a", "version 7", "2 updates behind", "12 s", "no space left", "db query engines"):
        assert part in line
    assert "engine lags" in (tmp_path / "trainer.jsonl").read_text()


def test_lagging_engine__is_named_again_when_twice_as_far_or_after_it_caught_up(tmp_path: Path) -> None:
    store, said, lagging = looking(tmp_path)
    counts = []
    for updates in (2, 3, 4, 5, 7, 8, 1, 2):
        store.found = (behind(updates),)
        lagging.look()
        counts.append(len(said))
    assert counts == [1, 1, 2, 2, 2, 3, 3, 4]
