"""The kernel frees sockets that hold each other in its own time, and a reset knows that of sockets only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sandboxes.agent.ground import InPlace

CLEAN = {"sockets": ["UNIX: inuse 2"], "unix sockets": 3, "descriptors": 4}


class Seen(InPlace):
    """Sees one state after another, and the last one again and again."""

    def __init__(self, *states: Mapping[str, Any]) -> None:
        self._baseline = CLEAN
        self.states = list(states)

    def _observe(self) -> dict[str, object]:
        return dict(self.states.pop(0) if len(self.states) > 1 else self.states[0])


def test_sockets_freed_late__are_waited_for() -> None:
    late = CLEAN | {"sockets": ["UNIX: inuse 42"], "unix sockets": 43}
    ground = Seen(late, late, CLEAN)
    assert ground._left() == []
    assert len(ground.states) == 1


def test_sockets_that_stay__are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.agent.ground._FREED_S", 0.02)
    assert Seen(CLEAN | {"unix sockets": 43})._left() == ["unix sockets"]


def test_anything_else__is_a_doubt_at_once() -> None:
    ground = Seen(CLEAN | {"unix sockets": 43, "descriptors": 5}, CLEAN)
    assert ground._left() == ["descriptors", "unix sockets"]
