"""A worker stops episodes that nobody needs any more, and their places are free at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunSpec, StepCommit
from agentrl.store.memory import MemoryStore
from agentrl.types import EpisodeEnd, Lineage, Opened, Outcome, Place, Reward, Sampling, Segment, Task, Termination

LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())


class Endless:
    """A runner whose episodes store one turn and then go on for ever."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.unrepeatable: set[UUID] = set()
        self.began: asyncio.Queue[Opened] = asyncio.Queue()
        self.stopped: list[UUID] = []

    async def run(self, opened: Opened) -> EpisodeEnd:
        ids = np.arange(2, dtype=np.int32)
        version = self.store.newest_version(opened.run)
        assert version is not None
        versions = np.full(2, version.version, np.int32)
        self.store.write_segment(opened, Segment(0, ids, ids, np.zeros(2, np.float32), versions))
        await self.began.put(opened)
        try:
            await asyncio.sleep(3600)
        finally:
            self.stopped.append(opened.trajectory)
        raise AssertionError("it never ends by itself")

    def metrics(self) -> dict[str, float]:
        return {}


class Case:
    """A run of one task with a bound of one update, whose trainer takes steps over nothing."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.store = MemoryStore()
        settings = RunSpec("r", "toy", {}, "h", 0, **{"lag_bound": 1, "batch_min": 1, "batch_max": 1, "lease_s": 600.0} | spec)
        self.run = self.store.create_run(settings, {"train": [Task("t", {})]})
        self.fence = self.store.start_trainer(self.run.id, owner="t", lease_s=600, checkpoint=None).fence
        self.engine = ScriptedEngine(lambda request: [])
        self.runner: Any = Endless(self.store)
        log = ProcessLog(folder, "rollout")
        self.worker = RolloutWorker(self.store, self.run, "W0", self.engine, self.runner, LINEAGE, 1, log)
        self.publish(0)

    def publish(self, updates: int) -> None:
        parent = updates - 1 if updates else None
        staged = self.store.stage_version(
            self.run.id, self.fence, parent=parent, updates=updates, uri=f"w{updates}", checksum="c"
        )
        self.store.publish_version(self.run.id, self.fence, staged.version)

    def step(self, number: int) -> None:
        self.store.commit_step(self.run.id, self.fence, StepCommit(number, True, number - 1, f"h{number}", {}, {}, []))
        self.publish(number)


async def test_doomed_are_stopped__and_their_place_is_free_at_once(tmp_path: Path) -> None:
    case, stop = Case(tmp_path), asyncio.Event()
    await case.engine.load(case.store.version(case.run.id, 0))
    serving = asyncio.create_task(case.worker.serve(stop))
    first = await asyncio.wait_for(case.runner.began.get(), 20)
    case.step(1)
    await asyncio.sleep(0.1)
    assert case.runner.stopped == [], "one update old is within the bound"
    case.step(2)
    second = await asyncio.wait_for(case.runner.began.get(), 20)
    assert case.runner.stopped == [first.trajectory]
    assert (second.task.id, second.attempt) == (first.task.id, 2)
    assert case.store.conservation(case.run.id).places[Place.DROPPED] == 1
    assert case.worker._ended["stale"] == 1
    stop.set()
    await serving


@pytest.mark.parametrize("spec", [{"staleness_mode": "segment_mask"}, {"lag_bound": None}])
async def test_nothing_is_doomed__where_older_tokens_may_stay(tmp_path: Path, spec: dict[str, Any]) -> None:
    case, stop = Case(tmp_path, **spec), asyncio.Event()
    await case.engine.load(case.store.version(case.run.id, 0))
    serving = asyncio.create_task(case.worker.serve(stop))
    await asyncio.wait_for(case.runner.began.get(), 20)
    for number in range(1, 5):
        case.step(number)
    await asyncio.sleep(0.1)
    assert case.runner.stopped == []
    stop.set()
    await serving


async def test_stragglers_of_a_complete_group__are_stopped_long_before_their_lease_ends(tmp_path: Path) -> None:
    case, stop = Case(tmp_path, group_size=2, group_extra=1, batch_min=2, batch_max=2, lag_bound=0), asyncio.Event()
    case.worker.concurrency = 3
    await case.engine.load(case.store.version(case.run.id, 0))
    serving = asyncio.create_task(case.worker.serve(stop))
    episodes = [await asyncio.wait_for(case.runner.began.get(), 20) for _ in range(3)]
    end = EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, Reward(1.0))
    for episode in episodes[:2]:
        case.store.complete(episode, end)
    for _ in range(200):
        if episodes[2].trajectory in case.runner.stopped:
            break
        await asyncio.sleep(0.02)
    assert episodes[2].trajectory in case.runner.stopped
    stop.set()
    await serving
