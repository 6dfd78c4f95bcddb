"""Where one Postgres saturates: segments, claims, polls and wake-ups a second with more and more clients."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentrl.store.postgres import PostgresStore
from benchmarks.report import Row
from benchmarks.store.context import Context
from benchmarks.store.processes import Child, ask_all, children
from benchmarks.store.server import database
from benchmarks.store.world import Run
from benchmarks.store.writes import written

SEGMENTS_PER_TRAJECTORY = 30


def measure(context: Context) -> list[Row]:
    return [*segments(context), *claims(context)]


def segments(context: Context) -> list[Row]:
    """Processes with one connection each: one episode (a commit a turn), or 16 that share transactions."""
    rows = []
    with database(context.server) as url:
        store = PostgresStore(url, pool_size=1)
        setup = {"url": url, "run": Run(store).id, "version": 0}
        store.close()
        for threads in (1, 16):
            with children(context.size(16, 1), "writer", threads=threads, **setup) as started:
                rates = {n: rate(started[:n], threads, context.size(3, 1)) for n in (1, 2, 4, 8, 16) if n <= len(started)}
            what = "a commit each" if threads == 1 else f"{threads} episodes a connection sharing transactions"
            best = max(rates.values())
            rows.append(
                Row(f"segments a second (1,066 tokens), {what}", listed(rates, "connections"),
                    f"feeds {3600 * best / SEGMENTS_PER_TRAJECTORY:,.0f} trajectories of 30 turns an hour")
            )  # fmt: skip
    return rows


def rate(started: Sequence[Child], threads: int, rounds: int) -> float:
    best = min(written(started, 2).wall for _ in range(rounds))
    return 2 * len(started) * threads * SEGMENTS_PER_TRAJECTORY / best


def claims(context: Context) -> list[Row]:
    """One trainer a run, as there always is; the polls are what idle workers do."""
    each, polls = context.size(10, 1), context.size(2000, 50)
    claimed: dict[int, float] = {}
    polled: dict[int, float] = {}
    woken: dict[int, float] = {}
    with database(context.server) as url, children(context.size(8, 1), "trainer", url=url) as started:
        for n in (1, 2, 4, 8):
            if n > len(started):
                break
            some = started[:n]
            ask_all(some, "prepare", claims=each)
            claimed[n] = n * each / seconds(some, "claim", claims=each)
            polled[n] = n * polls / seconds(some, "poll", times=polls)
            woken[n] = n * polls / seconds(some, "wake", times=polls)
    best = max(claimed.values())
    return [
        Row("claims of 64, read and acknowledged, a second", listed(claimed, "runs"),
            f"{64 * best:,.0f} trajectories of 1,024 tokens a second"),
        Row("polls a second (the newest version)", listed(polled, "connections"),
            f"{max(polled.values()) * 2:,.0f} idle workers that ask every 2 s"),
        Row("wake-ups sent a second", listed(woken, "connections"),
            f"{max(woken.values()) / 50:,.0f} processes that send the most they may, 50 a second"),
    ]  # fmt: skip


def seconds(started: Sequence[Child], command: str, **arguments: int) -> float:
    began = time.perf_counter()
    ask_all(started, command, **arguments)
    return time.perf_counter() - began


def listed(rates: dict[int, float], of: str) -> str:
    return ", ".join(f"{n}: {rate:,.0f}" for n, rate in rates.items()) + f" ({of}: rate)"
