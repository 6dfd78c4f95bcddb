"""What is not trained on is said while it happens."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentrl.launch.drops import TELL_S, Drops
from agentrl.store.contract import QueryResult, TrajectoryStore


class Store:
    """Answers the one query that is asked."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int]] = []
        self.asked = 0

    def query(self, name: str, **parameters: Any) -> QueryResult:
        assert (name, parameters) == ("dropped_by_reason", {"run": "mine"})
        self.asked += 1
        return QueryResult(("purpose", "reason", "trajectories"), self.rows)


def test_drops__are_told_by_reason_when_there_are_more_and_not_more_often(capsys: pytest.CaptureFixture[str]) -> None:
    now, store = [0.0], Store()
    drops = Drops("mine", clock=lambda: now[0])

    def look(seconds: float) -> str:
        now[0] += seconds
        drops.look(cast(TrajectoryStore, store))
        return capsys.readouterr().out

    assert look(0.0) == ""
    store.rows = [("train", "infrastructure", 2), ("train", "stale", 3), ("train", "infrastructure", 4), ("eval", "stale", 9)]
    assert (look(1.0), store.asked) == ("", 1)
    assert look(TELL_S) == "  dropped so far  infrastructure 6, stale 3\n"
    assert (look(TELL_S), store.asked) == ("", 3)
