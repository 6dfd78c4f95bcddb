"""4,096 episodes open at once from 8 processes: how many connections that takes, and whether a write is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from agentrl.store.postgres import PostgresStore
from agentrl.types import Place
from benchmarks.report import Row
from benchmarks.store.context import Context
from benchmarks.store.processes import ask_all, children
from benchmarks.store.server import database
from benchmarks.store.world import Run

EPISODES, PROCESSES = 4096, 8
THREADS, TURNS, TOKENS = 64, 4, 1024
POOL = 8
"""Connections a process at most: the default of the store."""

_CONNECTIONS = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
)


@contextmanager
def most_connections(url: str) -> Iterator[list[int]]:
    """Counts the database's connections all the while; the list holds every count."""
    counts = [0]
    done = threading.Event()

    def watch() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not done.wait(0.05):
                row = connection.execute(_CONNECTIONS).fetchone()
                counts.append(row[0] if row else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield counts
    finally:
        done.set()
        watcher.join()


def measure(context: Context) -> list[Row]:
    processes, episodes = context.size(PROCESSES, 2), context.size(EPISODES, 128)
    with database(context.server) as url:
        store = PostgresStore(url, pool_size=1)
        run = Run(store, max_running=episodes)
        setup = {"url": url, "run": run.id, "version": run.version, "episodes": episodes // processes,
                 "threads": THREADS, "tokens": TOKENS, "turns": TURNS}  # fmt: skip
        with most_connections(url) as counts, children(processes, "rollout", **setup) as workers:
            opened = sum(ask_all(workers, "open"))
            open_at_once = store.counts(run.id)[Place.LIVE]
            began = time.perf_counter()
            acknowledged = sum(ask_all(workers, "write"))
            wall = time.perf_counter() - began
            lost_leases = sum(ask_all(workers, "renew"))
            completed = sum(ask_all(workers, "complete"))
        ((segments, episodes_whole),) = store.rows(
            "select count(*), count(distinct trajectory) filter (where seg = %s - 1) from agentrl.segment where run = %s",
            (TURNS, run.id),
        )
        holds = store.conservation(run.id).holds
        store.close()
    bound = processes * POOL + 1
    lost = opened * TURNS - min(acknowledged, segments)
    whole = (open_at_once, completed, episodes_whole) == (episodes,) * 3 and holds and lost_leases == 0
    return [
        Row(f"most connections with {open_at_once:,} open episodes from {processes} processes", str(max(counts)),
            f"bound: {processes} pools of {POOL}, and one", max(counts) / bound, "<= 1", max(counts) <= bound),
        Row("lost writes among them", str(lost), f"{segments:,} segments stored, {segments / wall:,.0f}/s", None, "0",
            lost == 0 and whole),
    ]  # fmt: skip
