"""200 episodes in workers that are killed at random: what is left, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time

import psutil

from benchmarks.report import Row
from benchmarks.sandbox.context import Context
from sandboxes.contract import Provider
from sandboxes.docker import Docker
from sandboxes.ownership import OWNER_LABEL

_EPISODES, _GONE_S = 200, 30.0


async def measure(context: Context) -> list[Row]:
    """A row a provider."""
    return [await _measure(context, provider) for provider in context.providers]


async def _measure(context: Context, provider: Provider) -> Row:
    chance = random.Random(2)
    wanted = context.size(_EPISODES, 10)
    url = provider.url if isinstance(provider, Docker) else ""
    done = kills = 0
    slowest = 0.0
    left: set[str] = set()
    while done < wanted:
        command = [sys.executable, "-m", "benchmarks.sandbox.worker", provider.name, url, str(wanted - done)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE)
        owner = json.loads(await asyncio.to_thread(_line, worker))
        lives = chance.randint(4, 40)
        while lives:
            ended = await asyncio.to_thread(_line, worker)
            if not ended:
                break
            done, lives = done + 1, lives - 1
        if not lives:
            await asyncio.sleep(chance.random() * 0.02)
        remains = _Remains(context, provider, worker.pid, owner)
        worker.kill()
        killed = time.perf_counter()
        if worker.wait() < 0:
            kills += 1
        elif worker.returncode:
            raise RuntimeError(f"a worker failed with exit code {worker.returncode}")
        while remains.left() and time.perf_counter() < killed + _GONE_S:
            await asyncio.sleep(0.02)
        left |= remains.left()
        slowest = max(slowest, time.perf_counter() - killed)
    await provider.sweep()
    value = f"{len(left)} processes or containers left, all gone within {slowest:.2f} s"
    name = f"{done} episodes, {kills} workers killed, {provider.name}"
    return Row(name, value, "", None, "0 left, gone in 2 s", not left and slowest < 2)


def _line(worker: subprocess.Popen[bytes]) -> bytes:
    assert worker.stdout is not None
    return worker.stdout.readline()


class _Remains:
    """What belongs to one worker: taken before its end, looked for after it."""

    def __init__(self, context: Context, provider: Provider, pid: int, owner: str) -> None:
        self._engine = context.client().api if isinstance(provider, Docker) else None
        self._label = f"{OWNER_LABEL}={owner}"
        self._processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # it had no episodes left and ended by itself
            self._processes = psutil.Process(pid).children(recursive=True)

    def left(self) -> set[str]:
        found = {f"process {process.pid}" for process in self._processes if _runs(process)}
        if self._engine is not None:
            found |= {str(listed["Id"]) for listed in self._engine.containers(all=True, filters={"label": self._label})}
        return found


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
