"""A child with one connection: writes segments into the store, or the same bytes by COPY, each with a commit of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from agentrl.store.postgres import PostgresStore
from agentrl.types import Opened
from benchmarks.store.floor import copy_segments
from benchmarks.store.payload import TOKENS, TURNS, trajectory
from benchmarks.store.world import end, open_episodes


class Writer:
    """``threads`` > 1: that many episodes at a time over one connection, sharing transactions."""

    def __init__(self, number: int, url: str, run: int, version: int, threads: int, tokens: int = TOKENS) -> None:
        self.store = PostgresStore(url, pool_size=1)
        self.raw = psycopg.connect(url, autocommit=True)
        self.run, self.version, self.threads = run, version, threads
        self.segments = trajectory(number, tokens, TURNS, version)
        self.pool = ThreadPoolExecutor(threads)
        self.opened: list[Opened] = []

    def open(self, each: int) -> None:
        """``each`` new episodes a thread."""
        self.opened = open_episodes(self.store, self.run, self.version, self.threads * each)

    def write(self) -> int:
        """All turns of the open episodes; returns how many segments were stored."""
        return sum(self.pool.map(self._write_one, self.opened))

    def _write_one(self, episode: Opened) -> int:
        return sum(self.store.write_segment(episode, s) for s in self.segments)

    def complete(self) -> None:
        for episode in self.opened:
            self.store.complete(episode, end(len(self.segments)))

    def copy(self, each: int) -> None:
        for _ in range(each):
            for s in self.segments:
                copy_segments(self.raw, [s])

    def close(self) -> None:
        self.pool.shutdown()
        self.raw.close()
        self.store.close()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    writer = Writer(**setup)
    return {name: getattr(writer, name) for name in ("open", "write", "complete", "copy", "close")}
