"""A child like a rollout worker: many open episodes, a bounded pool, threads that write their turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.store.postgres import PostgresStore
from agentrl.types import Opened
from benchmarks.store.payload import trajectory
from benchmarks.store.world import end, open_episodes


class Worker:
    def __init__(
        self, number: int, url: str, run: int, version: int, episodes: int, threads: int, tokens: int, turns: int
    ) -> None:
        self.store = PostgresStore(url)
        self.number, self.run, self.version, self.episodes = number, run, version, episodes
        self.segments = trajectory(number, tokens, turns, version)
        self.pool = ThreadPoolExecutor(threads)
        self.opened: list[Opened] = []

    def open(self) -> int:
        self.opened = open_episodes(self.store, self.run, self.version, self.episodes, f"worker-{self.number}")
        return len(self.opened)

    def write(self) -> int:
        """Turn after turn of all episodes; returns how many were acknowledged as stored."""
        stored = 0
        for s in self.segments:
            stored += sum(self.pool.map(lambda e, s=s: self.store.write_segment(e, s), self.opened))
        return stored

    def renew(self) -> int:
        """One renewal of all leases; returns how many were lost."""
        return len(self.store.renew_episodes(f"worker-{self.number}", {e.trajectory: e.fence for e in self.opened}))

    def complete(self) -> int:
        ended = end(len(self.segments))
        return sum(1 for _ in self.pool.map(lambda e: self.store.complete(e, ended), self.opened))

    def close(self) -> None:
        self.pool.shutdown()
        self.store.close()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    worker = Worker(**setup)
    return {name: getattr(worker, name) for name in ("open", "write", "renew", "complete", "close")}
