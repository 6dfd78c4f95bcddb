"""CPU of one worker process a turn, with 512 concurrent episodes whose model and tools only take time, and its memory."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from agentrl.rollout.episode import EpisodeRunner
from agentrl.store.postgres import PostgresStore
from benchmarks.report import Row, at_most
from benchmarks.rollout.simulated import simulation
from benchmarks.store.server import database, server

CONCURRENT = 512
TURNS = 8
MODEL_S, TOOL_S = 0.2, 0.5


@dataclass(frozen=True)
class Reading:
    """Totals of this process at one moment."""

    turns: int
    cpu_s: float
    resident: int


def measure(quick: bool = False) -> list[Row]:
    """Two rows: CPU a turn, and memory of the second half of the run against the first."""
    concurrent, episodes = (32, 96) if quick else (CONCURRENT, 4 * CONCURRENT)
    with server(None) as url, database(url) as fresh, tempfile.TemporaryDirectory() as folder:
        readings = asyncio.run(_run(fresh, Path(folder), concurrent, episodes))
    first, half, last = readings
    a_turn = (last.cpu_s - first.cpu_s) / (last.turns - first.turns) * 1000
    grown = last.resident / half.resident
    what = f"worker CPU a turn, {concurrent} concurrent episodes of {TURNS + 1} turns"
    before = f"after half of the turns: {half.resident / 1e6:.0f} MB"
    return [
        at_most(what, f"{a_turn:.2f} ms", "limit: 2 ms", a_turn / 2, 1),
        at_most("its resident memory at the end", f"{last.resident / 1e6:.0f} MB", before, grown, 1.2),
    ]


async def _run(url: str, folder: Path, concurrent: int, episodes: int) -> list[Reading]:
    chance = random.Random(0)
    seconds = [[chance.uniform(0, 2 * TOOL_S) for _ in range(TURNS)] for _ in range(episodes)]
    store = PostgresStore(url)
    try:
        made = simulation(
            store, folder / "worker", seconds, concurrency=concurrent, model_s=MODEL_S, lag_bound=None, batch_min=1,
            batch_max=1, max_running=concurrent,
        )  # fmt: skip
        await made.worker.engine.load(made.publish(0, None))
        stop = asyncio.Event()
        serving = asyncio.create_task(made.worker.serve(stop))
        readings = [await _after(made.worker.runner, n) for n in (concurrent, episodes // 2, episodes)]
        stop.set()
        await serving
        return readings
    finally:
        store.close()


async def _after(runner: EpisodeRunner, episodes: int) -> Reading:
    """Once so many episodes have ended."""
    while runner.episodes < episodes:
        await asyncio.sleep(0.05)
    process = psutil.Process()
    ended: int = runner.episodes
    return Reading(ended * (TURNS + 1), time.process_time(), process.memory_info().rss)
