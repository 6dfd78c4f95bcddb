"""Waiting for a warm sandbox: first as many episodes as the machine carries, then arrivals at a share of that rate."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time

from benchmarks.report import Row
from benchmarks.sandbox.context import SPEC, Context, milliseconds, percentile
from sandboxes.contract import Provider
from sandboxes.pool import Pool

_SHARE = 0.5
"""Of the highest rate: above some 70 % of it any queue grows, whatever it waits for."""


async def measure(context: Context) -> list[Row]:
    """Two rows a provider."""
    return [row for provider in context.providers for row in await _measure(context, provider)]


async def _measure(context: Context, provider: Provider) -> list[Row]:
    size = 4 * (os.cpu_count() or 1)
    pool = Pool(provider, size)
    await pool.warm(SPEC, size)
    waits: list[float] = []

    async def episode() -> None:
        asked = time.perf_counter()
        async with pool.acquire(SPEC) as sandbox:
            waits.append(time.perf_counter() - asked)
            await sandbox.run_python("print(1)")

    async def worker(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            await episode()
            done += 1
        return done

    seconds = context.size(4, 1)
    until = time.perf_counter() + seconds
    highest = sum(await asyncio.gather(*(worker(until) for _ in range(size)))) / seconds
    waits.clear()
    chance, rate = random.Random(1), _SHARE * highest
    running = []
    for _ in range(int(rate * context.size(12, 1))):
        running.append(asyncio.ensure_future(episode()))
        await asyncio.sleep(chance.expovariate(rate))
    await asyncio.gather(*running)
    counts = pool.metrics()
    await pool.close()
    p50, p99 = statistics.median(waits), percentile(waits, 99)
    load = f"{rate:.0f} episodes/s arrive at random, {_SHARE:.0%} of the highest rate; "
    load += f"{counts['retired']:.0f} worn ones replaced meanwhile, {counts['doubtful']:.0f} resets in doubt"
    return [
        Row(
            f"acquire a warm sandbox, {provider.name}",
            milliseconds(waits),
            load,
            None,
            "p50 < 5 ms, p99 < 50 ms",
            p50 < 0.005 and p99 < 0.05,
        ),
        Row(f"episodes of one run each, {provider.name}", f"{highest:.0f}/s", f"{size} sandboxes, reset between any two"),
    ]
