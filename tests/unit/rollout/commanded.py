"""A worker over a store in memory whose episodes end when the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from agentrl.engine.scripted import ScriptedEngine
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunSpec, StepCommit
from agentrl.store.memory import MemoryStore
from agentrl.types import (
    EpisodeEnd,
    Lineage,
    Opened,
    Outcome,
    Place,
    PolicyVersion,
    Reward,
    Sampling,
    Segment,
    Task,
    Termination,
)

LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())
PLACES = 3


class OnCommand:
    """A runner whose episodes store one turn, or none without ``acts``, and end when their event is set."""

    def __init__(self, store: MemoryStore, acts: bool = True) -> None:
        self.store, self.acts = store, acts
        self.unrepeatable: set[UUID] = set()
        self.causes: dict[UUID, BaseException] = {}
        self.running: dict[UUID, asyncio.Event] = {}
        self.cut: list[UUID] = []

    async def run(self, opened: Opened) -> EpisodeEnd:
        if self.acts:
            ids, version = np.arange(2, dtype=np.int32), self.store.newest_version(opened.run)
            assert version is not None
            versions = np.full(2, version.version, np.int32)
            self.store.write_segment(opened, Segment(0, ids, ids, np.zeros(2, np.float32), versions))
        told = self.running[opened.trajectory] = asyncio.Event()
        try:
            await told.wait()
        except asyncio.CancelledError:
            self.cut.append(opened.trajectory)
            raise
        finally:
            del self.running[opened.trajectory]
        end = EpisodeEnd(int(self.acts), Termination.TERMINATED, Outcome.GRADED, Reward(1.0))
        self.store.complete(opened, end)
        return end

    def end(self, number: int) -> None:
        """End the ``number`` oldest of the running episodes."""
        for told in list(self.running.values())[:number]:
            told.set()

    def metrics(self) -> dict[str, float]:
        return {}


class Asked(MemoryStore):
    """Counts requests for episodes, and holds those of training back while ``gate`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0

    def open_episodes(self, run: int, **given: Any) -> Any:
        self.asked += 1
        self.gate.wait()
        return super().open_episodes(run, **given)

    def open_evaluation_episodes(self, evaluation: int, **given: Any) -> Any:
        self.asked += 1
        return super().open_evaluation_episodes(evaluation, **given)


class Case:
    """A run and its only worker, which polls so rarely that only a wake-up counts."""

    def __init__(self, folder: Path, *, acts: bool = True, evaluate: bool = False, refresh_every: int = 1, **spec: Any) -> None:
        self.store = Asked()
        settings = {"lag_bound": 9, "batch_min": 100, "batch_max": 100, "lease_s": 600.0} | spec
        tasks = {"train": [Task("t", {})], "heldout": [Task("h", {})]}
        self.run = self.store.create_run(RunSpec("r", "toy", {}, "h", 0, **settings), tasks)
        self.fence = self.store.start_trainer(self.run.id, owner="t", lease_s=600, checkpoint=None).fence
        self.first = self.publish(0)
        self.engine, self.runner = ScriptedEngine(lambda request: []), OnCommand(self.store, acts)
        runner: Any = self.runner
        log = ProcessLog(folder, "rollout")
        self.worker = RolloutWorker(
            self.store, self.run, "W0", self.engine, runner, LINEAGE, PLACES, log, evaluate, poll_s=600,
            refresh_every=refresh_every,
        )  # fmt: skip

    def stage(self, updates: int) -> PolicyVersion:
        parent = updates - 1 if updates else None
        return self.store.stage_version(
            self.run.id, self.fence, parent=parent, updates=updates, uri=f"w{updates}", checksum="c"
        )

    def publish(self, updates: int) -> PolicyVersion:
        version = self.stage(updates)
        self.store.publish_version(self.run.id, self.fence, version.version)
        return version

    def step(self, number: int, consumed: Any = ()) -> None:
        self.store.commit_step(self.run.id, self.fence, StepCommit(number, True, number - 1, f"h{number}", {}, {}, consumed))

    def count(self, place: Place) -> int:
        return self.store.counts(self.run.id)[place]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.Event]:
        """The worker serves until the end, or until the event is set."""
        await self.engine.load(self.first)
        stop = asyncio.Event()
        serving = asyncio.create_task(self.worker.serve(stop))
        try:
            yield stop
        finally:
            self.store.gate.set()
            stop.set()
            await serving


async def eventually(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never happened")
