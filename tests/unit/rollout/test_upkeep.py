"""Leases of running episodes are renewed; an episode whose row is gone is stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.upkeep import keep_leases, wait_for
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.types import Lineage, Opened, Sampling, Task

LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened_run(clock: Clock) -> tuple[MemoryStore, Any, Opened]:
    store = MemoryStore(clock)
    spec = RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1, lease_s=0.06)
    run = store.create_run(spec, {"train": [Task("t", {})]})
    fence = store.start_trainer(run.id, owner="t", lease_s=600, checkpoint=None).fence
    version = store.stage_version(run.id, fence, parent=None, updates=0, uri="w", checksum="c").version
    store.publish_version(run.id, fence, version)
    store.set_run_status(run.id, "running")
    (episode,) = store.open_episodes(
        run.id, worker="W0", request=uuid4(), n=1, engine_version=version, lineage=LINEAGE
    ).episodes
    return store, run, episode


async def test_leases_alive__renewed_every_third_and_the_loser_is_told() -> None:
    clock = Clock()
    store, run, episode = opened_run(clock)
    lost: list[UUID] = []
    keeping = asyncio.create_task(keep_leases(store, run, "W0", lambda: {episode.trajectory: episode.fence}, lost.append))
    for _ in range(20):
        clock.now += 0.03
        await asyncio.sleep(0.03)
    assert lost == []
    clock.now += 1000  # the process slept; somebody reaps its row
    store.open_episodes(run.id, worker="W1", request=uuid4(), n=1, engine_version=0, lineage=LINEAGE)
    while not lost:
        await asyncio.sleep(0.01)
    keeping.cancel()
    assert lost[0] == episode.trajectory


async def test_lost_is_stopped__its_task_is_cancelled(tmp_path: Path) -> None:
    store, run, episode = opened_run(Clock())
    runner: Any = SimpleNamespace(metrics=dict)
    worker = RolloutWorker(
        store, run, "W0", ScriptedEngine(lambda request: []), runner, LINEAGE, 1, ProcessLog(tmp_path, "rollout")
    )
    running = asyncio.create_task(asyncio.sleep(60))
    worker._running[episode.trajectory] = (episode, running)
    worker._lost(uuid4())
    worker._lost(episode.trajectory)
    await asyncio.wait([running])
    assert running.cancelled()


@pytest.mark.parametrize("turns", range(6))
async def test_wait__that_is_stopped_while_its_event_comes__is_stopped(turns: int) -> None:
    """A worker that goes on after its stop never ends."""
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for(event, 60))
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
