"""Seconds of one piece of work by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """``seconds``: wall time by the name of the phase, in the order in which they began; the same name again adds up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts until the block is left, however that happens."""
        began = time.perf_counter()
        self.seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began

    @property
    def total(self) -> float:
        """Sum of all phases."""
        return sum(self.seconds.values())
