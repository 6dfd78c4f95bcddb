"""Durable fenced segment writes against raw COPY of the same bytes, 8 processes with one connection each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from agentrl.store.postgres import PostgresStore
from benchmarks.report import Row, Sample, at_least, interleaved
from benchmarks.store.context import Context
from benchmarks.store.floor import create_floor
from benchmarks.store.payload import TURNS
from benchmarks.store.processes import Child, ask_all, children
from benchmarks.store.server import database
from benchmarks.store.world import Run

CONNECTIONS = 8
EPISODES = 8
"""Episodes at a time over one connection where transactions are shared."""


def measure(context: Context) -> list[Row]:
    rounds, connections, each = context.size(7, 1), context.size(CONNECTIONS, 2), context.size(4, 1)
    with database(context.server) as url:
        create_floor(url)
        store = PostgresStore(url, pool_size=1)
        setup = {"url": url, "run": Run(store).id, "version": 0}
        store.close()
        with (
            children(connections, "writer", threads=1, **setup) as single,
            children(context.size(CONNECTIONS, 1), "writer", threads=EPISODES, **setup) as shared,
        ):
            best = interleaved(
                rounds,
                {
                    "copy": partial(copied, single, each),
                    "alone": partial(written, single, each),
                    "shared": partial(written, shared, 1),
                },
            )
    floor = connections * each * TURNS / best["copy"].wall
    alone = connections * each * TURNS / best["alone"].wall
    together = len(shared) * EPISODES * TURNS / best["shared"].wall
    return [
        at_least(
            f"fenced segment writes, {connections} connections, a commit each", f"{alone:,.0f}/s",
            f"raw binary COPY, a commit each: {floor:,.0f}/s", alone / floor, 0.5,
        ),
        Row(
            f"the same, {EPISODES} episodes a connection sharing transactions", f"{together:,.0f}/s",
            f"raw binary COPY, a commit each: {floor:,.0f}/s", together / floor,
        ),
    ]  # fmt: skip


def copied(started: Sequence[Child], each: int) -> Sample:
    began = time.perf_counter()
    ask_all(started, "copy", each=each)
    return Sample(time.perf_counter() - began)


def written(started: Sequence[Child], each: int) -> Sample:
    """Time of the segments alone: episodes are opened before and completed after."""
    ask_all(started, "open", each=each)
    began = time.perf_counter()
    stored = ask_all(started, "write")
    wall = time.perf_counter() - began
    assert all(n % (each * TURNS) == 0 and n for n in stored), stored
    ask_all(started, "complete")
    return Sample(wall)
