"""A child like a trainer, which claims and acknowledges, or like an idle worker, which asks whether there is something new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrl.store.postgres import PostgresStore
from benchmarks.store.bulk import STEP, Templates
from benchmarks.store.world import Run


class Trainer:
    def __init__(self, number: int, url: str) -> None:
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
        """What an idle rollout worker asks twenty times a second."""
        for _ in range(times):
            self.store.newest_version(self.run.id)
        return times

    def close(self) -> None:
        self.store.close()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    trainer = Trainer(**setup)
    return {name: getattr(trainer, name) for name in ("prepare", "claim", "poll", "close")}
