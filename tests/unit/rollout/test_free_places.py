"""A worker asks for another episode whenever the store may admit one, and not when it can't."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.types import EpisodeEnd, Lineage, Opened, Outcome, Reward, Sampling, Task, Termination

LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())
PLACES = 3


class OnCommand:
    """A runner whose episodes end when the test says so."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.unrepeatable: set[UUID] = set()
        self.causes: dict[UUID, BaseException] = {}
        self.running: list[asyncio.Event] = []

    async def run(self, opened: Opened) -> EpisodeEnd:
        end = EpisodeEnd(0, Termination.TERMINATED, Outcome.GRADED, Reward(1.0))
        told = asyncio.Event()
        self.running.append(told)
        await told.wait()
        self.running.remove(told)
        self.store.complete(opened, end)
        return end

    def metrics(self) -> dict[str, float]:
        return {}


class Asked(MemoryStore):
    """Counts requests for episodes, and holds them back while ``gate`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0

    def open_episodes(self, run: int, **given: Any) -> Any:
        self.asked += 1
        self.gate.wait()
        return super().open_episodes(run, **given)


class Case:
    def __init__(self, folder: Path, **spec: Any) -> None:
        self.store = Asked()
        settings = {"lag_bound": 9, "batch_min": 100, "batch_max": 100} | spec
        run = self.store.create_run(RunSpec("r", "toy", {}, "h", 0, **settings), {"train": [Task("t", {})]})
        fence = self.store.start_trainer(run.id, owner="t", lease_s=600, checkpoint=None).fence
        self.version = self.store.stage_version(run.id, fence, parent=None, updates=0, uri="w", checksum="c")
        self.store.publish_version(run.id, fence, self.version.version)
        self.engine, self.runner = ScriptedEngine(lambda request: []), OnCommand(self.store)
        runner: Any = self.runner
        log = ProcessLog(folder, "rollout")
        self.worker = RolloutWorker(self.store, run, "W0", self.engine, runner, LINEAGE, PLACES, log, poll_s=600)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        await self.engine.load(self.version)
        stop = asyncio.Event()
        serving = asyncio.create_task(self.worker.serve(stop))
        try:
            yield
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


@pytest.mark.parametrize("spec", [{}, {"lag_bound": None, "max_running": PLACES}])
async def test_place__that_comes_free_while_the_store_is_asked_is_filled_too(tmp_path: Path, spec: dict[str, Any]) -> None:
    case = Case(tmp_path, **spec)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == PLACES)
        case.store.gate.clear()
        asked = case.store.asked
        case.runner.running[0].set()
        await eventually(lambda: case.store.asked == asked + 1)
        case.runner.running[0].set()
        await eventually(lambda: len(case.runner.running) == PLACES - 2)
        case.store.gate.set()
        await eventually(lambda: len(case.runner.running) == PLACES)


async def test_ends__ask_for_nothing_while_what_is_ready_fills_the_bound(tmp_path: Path) -> None:
    case = Case(tmp_path, lag_bound=0, batch_min=PLACES - 1, batch_max=PLACES - 1)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == PLACES - 1)
        await asyncio.sleep(0.2)
        asked = case.store.asked
        for told in list(case.runner.running):
            told.set()
        await asyncio.sleep(0.2)
        assert case.runner.running == []
        assert case.store.asked == asked
