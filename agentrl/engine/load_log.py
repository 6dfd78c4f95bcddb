"""What an engine did to get its weights, until somebody records it."""

from __future__ import annotations

from collections import deque

from agentrl.store.loads import EngineLoad

MOST = 1000
"""Attempts kept for a caller that never takes them."""


class LoadLog:
    """Attempts in their order."""

    def __init__(self) -> None:
        self._loads: deque[EngineLoad] = deque(maxlen=MOST)

    def add(self, load: EngineLoad) -> None:
        self._loads.append(load)

    def take(self) -> list[EngineLoad]:
        """All since the last call."""
        taken = list(self._loads)
        self._loads.clear()
        return taken
