"""Claim 64, read them into tensors, acknowledge: 1,000 and 100,000 stored, a long queue, a pinned transaction."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg

from agentrl.store.postgres import PostgresStore
from benchmarks.report import Row, at_most
from benchmarks.store.bulk import STEP, Templates, settle
from benchmarks.store.context import Context
from benchmarks.store.server import database
from benchmarks.store.world import Run, tensors

GUARD_S = 1.0
"""The guard's limit while it is tested; a server's own is minutes."""


class Filled:
    """A database with a number of consumed trajectories, and the loop of a trainer over it."""

    def __init__(self, url: str, stored: int, ready: int = 0) -> None:
        self.url = url
        self.store = PostgresStore(url, pool_size=2)
        self.run = Run(self.store)
        self.templates = Templates(self.store, self.run)
        for n in _portions(stored):
            self.templates.consume(n)
        for n in _portions(ready):
            self.templates.make_ready(n)
        settle(url)

    def step(self) -> float:
        """Seconds from claim to acknowledgement of 64 trajectories that became ready just before."""
        self.templates.make_ready(STEP)
        began = time.perf_counter()
        items = self.run.claim(STEP)
        for item in items:
            for trajectory in item.trajectories:
                tensors(trajectory)
        self.run.commit(items)
        return time.perf_counter() - began

    def check(self) -> None:
        conservation = self.store.conservation(self.run.id)
        assert conservation.holds, conservation


def _portions(n: int, size: int = 100 * STEP) -> Iterator[int]:
    while n > 0:
        yield min(n, size)
        n -= size


@contextmanager
def filled(context: Context, stored: int, ready: int = 0) -> Iterator[Filled]:
    with database(context.server) as url:
        made = Filled(url, stored, ready)
        try:
            yield made
            made.check()
        finally:
            made.store.close()


def measure(context: Context) -> list[Row]:
    few, many = context.size(1024, 256), context.size(100_032, 1024)
    with filled(context, few) as small, filled(context, many) as large, filled(context, few, many) as queue:
        times: dict[str, list[float]] = {"small": [], "large": [], "queue": []}
        worlds = list(zip(times, (small, large, queue), strict=True))
        for _ in range(context.size(60, 3)):
            for name, world in worlds:
                times[name].append(world.step())
            worlds.reverse()  # who comes first pays for what the one before left to the disk
        p50 = {name: statistics.median(taken) for name, taken in times.items()}
        name = "claim 64 + tensors + acknowledge, p50"
        return [
            at_most(f"{name}, {many:,} stored", ms(p50["large"]), f"{few:,} stored: {ms(p50['small'])}",
                    p50["large"] / p50["small"], 1.3),
            Row(f"{name}, {many:,} waiting in the queue", ms(p50["queue"]), f"64 waiting: {ms(p50['small'])}",
                p50["queue"] / p50["small"]),
            *pinned(context, large, p50["large"]),
        ]  # fmt: skip


def pinned(context: Context, world: Filled, before: float) -> list[Row]:
    """The same while a forgotten transaction keeps the last 10,000 consumed rows from being cleaned up."""
    consumed = context.size(10_048, 192)
    with psycopg.connect(world.url) as pin:
        pin.execute("set transaction isolation level repeatable read")
        pin.execute("select count(*) from agentrl.run")
        times = [world.step() for _ in range(consumed // STEP)]
        found = pin.execute("show idle_in_transaction_session_timeout").fetchone()
    last = statistics.median(times[-min(20, len(times)) :])
    limit = found[0] if found else "0"
    ended = guard_ends(world.url)
    return [
        at_most(f"the same under a transaction pinned over the last {consumed:,} consumed", ms(last),
                f"without it: {ms(before)}", last / before, 2.0),
        Row("the guard ends a forgotten transaction (idle_in_transaction_session_timeout)",
            f"after {ended:.1f} s" if ended is not None else "never", f"limit here {GUARD_S:g} s, of this server {limit}",
            None, "set and ends it", ended is not None and limit != "0"),
    ]  # fmt: skip


def guard_ends(url: str) -> float | None:
    """Seconds until the server ends an idle transaction whose limit is `GUARD_S`; None when it does not."""
    with closing(psycopg.connect(url)) as pin:
        pin.execute("select set_config('idle_in_transaction_session_timeout', %s, false)", (f"{GUARD_S:g}s",))
        pin.execute("select count(*) from agentrl.run")
        (pid,) = pin.execute("select pg_backend_pid()").fetchone() or (0,)
        began = time.perf_counter()
        with psycopg.connect(url, autocommit=True) as watcher:
            while time.perf_counter() - began < 5 * GUARD_S:
                if not watcher.execute("select 1 from pg_stat_activity where pid = %s", (pid,)).fetchone():
                    return time.perf_counter() - began
                time.sleep(0.05)
    return None


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
