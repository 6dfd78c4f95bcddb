"""What the measurements share: a daemon, sizes, and how rounds of two rivals take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from docker import DockerClient

from sandboxes.contract import Provider, SandboxSpec
from sandboxes.docker import Docker

SPEC = SandboxSpec(memory_mb=256, pids=64)
"""Of every sandbox that is measured."""

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Context:
    """``docker``: None where no daemon answers, for the reason ``without``. ``others``: providers that need no daemon."""

    docker: Docker | None
    without: str
    others: tuple[Provider, ...]
    quick: bool
    peers_python: str

    def size(self, full: int, quick: int) -> int:
        """How much to do."""
        return quick if self.quick else full

    @property
    def providers(self) -> tuple[Provider, ...]:
        """All that work here."""
        return (*((self.docker,) if self.docker else ()), *self.others)

    def client(self) -> DockerClient:
        """The SDK's own way to the same daemon."""
        assert self.docker is not None
        return DockerClient(base_url=self.docker.url, version="auto", timeout=120, max_pool_size=64)


async def times(call: Call, count: int) -> list[float]:
    """Seconds of each of ``count`` calls, one after the other."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - started)
    return taken


def percentile(taken: list[float], percent: int) -> float:
    """The value that ``percent`` of a hundred do not exceed."""
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def milliseconds(taken: list[float]) -> str:
    """p50 and p99, for the table."""
    return f"p50 {1000 * statistics.median(taken):.2f} ms, p99 {1000 * percentile(taken, 99):.1f} ms"
