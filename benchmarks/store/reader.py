"""A child that writes or reads one long trajectory and says how much its memory grew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from agentrl.store.postgres import PostgresStore
from agentrl.types import Segment
from benchmarks.store.payload import raw_bytes, segment
from benchmarks.store.world import end, open_episodes

_WARM_UP = 2
"""Turns written and read before the base is taken: code and buffers that any use needs."""


def _peak() -> int:
    """Highest resident bytes since the last reset."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _reset_peak() -> int:
    """Forget the peak so far; returns what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


class Reader:
    def __init__(self, number: int, url: str, run: int, version: int, tokens: int, turns: int) -> None:
        self.store = PostgresStore(url, pool_size=1)
        self.run, self.version, self.tokens, self.turns = run, version, tokens, turns
        warm = self._write([])
        assert self.store.trajectory(warm) is not None

    def _write(self, kept: list[Segment], turns: int = _WARM_UP) -> UUID:
        """Turn by turn; like a worker it keeps all segments until the end is written."""
        (episode,) = open_episodes(self.store, self.run, self.version, 1)
        for i in range(turns):
            kept.append(segment(7, i, self.tokens // self.turns, self.version))
            self.store.write_segment(episode, kept[-1])
        self.store.complete(episode, end(turns))
        return episode.trajectory

    def write(self) -> dict[str, Any]:
        base = _reset_peak()
        kept: list[Segment] = []
        trajectory = self._write(kept, self.turns)
        return {"trajectory": str(trajectory), "payload": raw_bytes(kept), "grown": _peak() - base}

    def read(self, trajectory: str) -> dict[str, Any]:
        base = _reset_peak()
        found = self.store.trajectory(UUID(trajectory))
        grown = _peak() - base
        assert found is not None
        return {"payload": raw_bytes(found.segments), "grown": grown, "turns": found.n_turns, "tokens": found.n_tokens}

    def close(self) -> None:
        self.store.close()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    reader = Reader(**setup)
    return {name: getattr(reader, name) for name in ("write", "read", "close")}
