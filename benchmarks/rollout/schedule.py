"""Asynchronous against synchronous on the same long-tailed work, beside the best that any schedule could do with that trace.

Each episode is one tool call whose time is log-normal (sigma 1) and known before; a step takes the trainer a fixed time. The
bound is the wall time of a simulated schedule that obeys the same rules (admission, the order of claims, the lag bound, which
costs it what ends too late), and whose every move costs nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from agentrl.store.contract import Change, StepCommit
from agentrl.store.postgres import PostgresStore
from benchmarks.report import Row, at_least
from benchmarks.rollout.simulated import Simulation, simulation
from benchmarks.store.server import database, server

LAGS = (0, 1, 2, 4, 8)
BATCH, STEPS = 16, 24
MEDIAN_S, SIGMA = 0.4, 1.0
STEP_S = 0.5


@dataclass(frozen=True)
class Work:
    """A trace: seconds of each episode, and what the trainer does with them."""

    seconds: list[float]
    batch: int
    steps: int
    step_s: float


def measure(quick: bool = False) -> list[Row]:
    """A row for each lag bound."""
    batch, steps = (4, 3) if quick else (BATCH, STEPS)
    chance = random.Random(0)
    work = Work([MEDIAN_S * chance.lognormvariate(0, SIGMA) for _ in range(batch * steps)], batch, steps, STEP_S)
    rows = []
    with server(None) as url, tempfile.TemporaryDirectory() as folder:
        walls: dict[int, float] = {}
        for lag in LAGS[:2] if quick else LAGS:
            with database(url) as fresh:
                walls[lag], lags = asyncio.run(_run(fresh, Path(folder) / f"lag-{lag}", work, lag))
            gained, best = walls[0] / walls[lag], ideal(work, 0) / ideal(work, lag)
            histogram = ", ".join(f"{lag_}: {n / (batch * steps):.0%}" for lag_, n in sorted(lags.items()))
            name = f"lag bound {lag}: {walls[lag]:.1f} s; trained by lag {histogram}"
            rows.append(at_least(name, f"speed-up {gained:.2f}", f"bound of the trace {best:.2f}", gained / best, 0.9))
    return rows


def ideal(work: Work, lag: int) -> float:
    """Wall seconds when opening, storing, claiming and publishing cost nothing.

    An episode that ends out of range is dropped at once, and the next task takes its place; after the last comes the first.
    """
    running: list[tuple[float, int]] = []
    ready: list[tuple[int, float, int]] = []
    started_at: list[int] = []
    now, step, busy_until = 0.0, 0, None
    leased = 0
    while step < work.steps:
        ready = [item for item in ready if step - item[0] <= lag]
        heapq.heapify(ready)
        while len(running) + len(ready) + leased < min(lag + 1, work.steps - step) * work.batch:
            opened = len(started_at)
            heapq.heappush(running, (now + work.seconds[opened % len(work.seconds)], opened))
            started_at.append(step)
        if busy_until is None and len(ready) >= work.batch:
            for _ in range(work.batch):
                heapq.heappop(ready)
            leased, busy_until = work.batch, now + work.step_s
        ends = running[0][0] if running else float("inf")
        if busy_until is not None and busy_until <= ends:
            now, busy_until, leased, step = busy_until, None, 0, step + 1
        else:
            now, episode = heapq.heappop(running)
            heapq.heappush(ready, (started_at[episode], now, episode))
    return now


async def _run(url: str, folder: Path, work: Work, lag: int) -> tuple[float, Counter[int]]:
    store = PostgresStore(url)
    try:
        made = simulation(
            store, folder, [[s] for s in work.seconds], concurrency=(lag + 1) * work.batch, model_s=0.0, lag_bound=lag,
            batch_min=work.batch, batch_max=work.batch, target_steps=work.steps,
        )  # fmt: skip
        await made.worker.engine.load(made.publish(0, None))
        stop = asyncio.Event()
        began = time.perf_counter()
        serving = asyncio.create_task(made.worker.serve(stop))
        lags = await _train(made, work)
        wall = time.perf_counter() - began
        stop.set()
        await serving
        return wall, lags
    finally:
        store.close()


async def _train(made: Simulation, work: Work) -> Counter[int]:
    """The trainer's moves, in this process: its update is a pause."""
    store, run, lags = made.store, made.run.id, Counter[int]()
    loop, items = asyncio.get_running_loop(), asyncio.Event()

    def woken(change: Change) -> None:
        loop.call_soon_threadsafe(items.set)

    subscription = store.subscribe(run, woken)
    version = made.store.newest_version(run)
    assert version is not None
    for step in range(1, work.steps + 1):
        while True:
            items.clear()
            claim = await asyncio.to_thread(store.claim, run, made.fence, n_min=work.batch, n_max=work.batch, lease_s=600.0)
            if claim.items:
                break
            async with asyncio.timeout(60):
                await items.wait()
        lags.update(item.lag for item in claim.items)
        await asyncio.sleep(work.step_s)
        commit = StepCommit(
            step=step, policy_updated=True, trainer_version=version.version, batch_hash=uuid4().hex, denominators={},
            metrics={}, consumed=[(item.item, item.token) for item in claim.items],
        )  # fmt: skip
        done = await asyncio.to_thread(store.commit_step, run, made.fence, commit)
        version = await asyncio.to_thread(made.publish, done.updates, version.version)
    await asyncio.to_thread(subscription.close)
    return lags
