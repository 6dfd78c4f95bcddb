"""A child that writes and reads whole trajectories with the store, as `peers` compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import psycopg

from agentrl.store.postgres import PostgresStore
from agentrl.types import Opened, Segment
from benchmarks.report import timed
from benchmarks.store.floor import copy_segments
from benchmarks.store.payload import trajectory
from benchmarks.store.world import Run, tensors, write_at_once, write_turn_by_turn


class Own:
    def __init__(self, number: int, url: str, n: int) -> None:
        self.store = PostgresStore(url, pool_size=1)
        self.raw = psycopg.connect(url, autocommit=True)
        self.run = Run(self.store)
        self.n = n
        self.pool = ThreadPoolExecutor(n)
        self.trajectories = [trajectory(seed, version=self.run.version) for seed in range(n)]

    def copy(self) -> dict[str, float]:
        def work() -> None:
            for segments in self.trajectories:
                copy_segments(self.raw, segments)

        return asdict(timed(work))

    def write(self) -> dict[str, float]:
        return self._write(write_at_once)

    def turns(self) -> dict[str, float]:
        return self._write(write_turn_by_turn)

    def together(self) -> dict[str, float]:
        """Turn by turn too, but all episodes at once, as a rollout worker runs them: their commits are shared."""

        def work() -> None:
            pairs = zip(self.run.open(self.n), self.trajectories, strict=True)
            list(self.pool.map(lambda pair: write_turn_by_turn(self.store, *pair), pairs))

        return asdict(timed(work))

    def _write(self, write: Callable[[PostgresStore, Opened, list[Segment]], None]) -> dict[str, float]:
        """Opening the episodes included."""

        def work() -> None:
            for episode, segments in zip(self.run.open(self.n), self.trajectories, strict=True):
                write(self.store, episode, segments)

        return asdict(timed(work))

    def read(self) -> dict[str, float]:
        """Claim, tensors, acknowledgement. A round writes all three times; only one claim is timed."""

        def work() -> None:
            items = self.run.claim(self.n)
            read = [tensors(t) for item in items for t in item.trajectories]
            assert len(read) == self.n
            self.run.commit(items)

        sample = asdict(timed(work))
        for _ in range(2):
            self.run.commit(self.run.claim(self.n))
        return sample

    def close(self) -> None:
        self.pool.shutdown()
        self.raw.close()
        self.store.close()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    own = Own(**setup)
    return {name: getattr(own, name) for name in ("copy", "write", "turns", "together", "read", "close")}
