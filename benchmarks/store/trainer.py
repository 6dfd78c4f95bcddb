"""A child like a trainer, which claims and acknowledges, or like an idle worker, which asks whether there is something new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from agentrl.store.postgres import PostgresStore
from agentrl.store.wakeup import channel
from benchmarks.store.bulk import STEP, Templates
from benchmarks.store.world import Run


class Trainer:
    def __init__(self, number: int, url: str) -> None:
        self.url = url
        self.store = PostgresStore(url, pool_size=1)
        self.run = Run(self.store)
        self.templates = Templates(self.store, self.run, f"template_{number}")

    def prepare(self, claims: int) -> None:
        self.templates.make_ready(claims * STEP)

    def claim(self, claims: int) -> int:
        for _ in range(claims):
            self.run.commit(self.run.claim(STEP))
        return claims

    def poll(self, times: int) -> int:
        """What an idle rollout worker asks when it is woken, or every two seconds."""
        for _ in range(times):
            self.store.newest_version(self.run.id)
        return times

    def wake(self, times: int) -> int:
        """Messages as a notifier sends them: a transaction each, on a connection that waits for no flush."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")
            for _ in range(times):
                connection.execute("select pg_notify(%s, 'items')", (channel(self.run.id),))
        return times

    def close(self) -> None:
        self.store.close()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    trainer = Trainer(**setup)
    return {name: getattr(trainer, name) for name in ("prepare", "claim", "poll", "wake", "close")}
