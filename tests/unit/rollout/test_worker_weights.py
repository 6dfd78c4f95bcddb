"""A worker's engine holds the newest version, whatever it held before and whether or not an episode runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commanded import eventually

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import WeightsCorrupt
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.upkeep import Freshness
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunSpec
from agentrl.store.loads import EngineLoad
from agentrl.store.memory import MemoryStore
from agentrl.types import Lineage, PolicyVersion, Sampling

LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())


class Case:
    """A run without tasks, so that its worker stays idle."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.run = self.store.create_run(RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1), {})
        self.fence = self.store.start_trainer(self.run.id, owner="t", lease_s=600, checkpoint=None).fence
        self.engine = ScriptedEngine(lambda request: [])
        runner: Any = SimpleNamespace(metrics=dict)
        log = ProcessLog(folder, "rollout")
        self.worker = RolloutWorker(self.store, self.run, "W0", self.engine, runner, LINEAGE, 1, log)

    def publish(self) -> PolicyVersion:
        parent = self.store.newest_version(self.run.id)
        version = self.store.stage_version(
            self.run.id, self.fence, parent=parent and parent.version, updates=0, uri=f"after {parent}", checksum="c"
        )
        self.store.publish_version(self.run.id, self.fence, version.version)
        return version


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    made, stop = Case(tmp_path), asyncio.Event()
    await made.engine.load(made.publish())
    serving = asyncio.create_task(made.worker.serve(stop))
    yield made
    stop.set()
    await serving


async def test_pull_between_turns__an_idle_worker_loads_too(case: Case) -> None:
    for _ in range(2):
        newest = case.publish().version
        await eventually(lambda newest=newest: case.engine.version == newest)  # type: ignore[misc]


async def test_push_trusted__an_engine_that_went_back_is_reloaded(case: Case) -> None:
    base = case.store.version(case.run.id, 0)
    newest = case.publish().version
    await eventually(lambda: case.engine.version == newest)
    await case.engine.load(base)
    await eventually(lambda: case.engine.version == newest)


async def test_told__each_load_is_a_row_under_the_workers_name(case: Case) -> None:
    rows = case.store._run(case.run.id).loads
    await eventually(lambda: len(rows) == 1)
    newest = case.publish().version
    await eventually(lambda: len(rows) == 2)
    assert [(load.engine, load.version, load.error, load.pinned) for _, load in rows] == [
        ("W0", 0, None, False), ("W0", newest, None, False),
    ]  # fmt: skip


async def test_told__a_load_that_failed_is_a_row_too_and_a_newer_version_is_tried(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may have been removed between the question for the newest version and the load."""
    load = case.engine.load
    newer: list[int] = []

    async def removed(version: PolicyVersion) -> None:
        if not newer:
            newer.append(case.publish().version)
            case.engine._loads.add(EngineLoad("", version.version, error="no such file"))
            raise WeightsCorrupt("no such file")
        await load(version)

    monkeypatch.setattr(case.engine, "load", removed)
    gone = case.publish().version
    await eventually(lambda: bool(newer) and case.engine.version == newer[0])
    rows = case.store._run(case.run.id).loads
    await eventually(lambda: rows[-1][1].version == newer[0])
    assert [(row.version, row.error) for _, row in rows[1:]] == [(gone, "no such file"), (newer[0], None)]


async def test_liveness__the_store_is_asked_again_once_the_engine_holds_the_new_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that are behind there is no room: asking before would be in the way of asking after."""
    case, begun, gate = Case(tmp_path), asyncio.Event(), asyncio.Event()
    load = case.engine.load
    await load(case.publish())
    newest, looks = case.publish().version, list[tuple[bool, int]]()

    async def slow(version: PolicyVersion) -> None:
        begun.set()
        await gate.wait()
        await load(version)

    def looked(loaded: bool) -> None:
        looks.append((loaded, case.engine.version))
        case.worker._looked(loaded)

    monkeypatch.setattr(case.engine, "load", slow)
    keeping = asyncio.create_task(case.worker._freshness.keep(lambda: False, looked))
    await begun.wait()
    case.worker._woken("policy")
    assert (looks, case.worker._changed.is_set()) == ([], False)
    gate.set()
    await eventually(lambda: len(looks) == 2)
    keeping.cancel()
    assert looks == [(True, newest), (False, newest)], "the word that came meanwhile is looked after, too"
    assert case.worker._changed.is_set()
    assert case.worker._loaded.is_set(), "there is room for a batch now, so nothing is gathered"


def named(version: int, updates: int) -> PolicyVersion:
    return PolicyVersion(version, version - 1 if version else None, updates, f"weights {version}", "c", "published")


@pytest.mark.parametrize(
    ("newest", "due"), [(named(6, 5), False), (named(7, 6), True), (named(9, 4), True)], ids=["one ahead", "two", "resumed"]
)
async def test_freshness__every_second_version_is_loaded_and_another_lineage_at_once(
    newest: PolicyVersion, due: bool, case: Case
) -> None:
    store: Any = SimpleNamespace(version=lambda run, version: named(5, 4))
    freshness = Freshness(store, case.run, "W0", case.engine, case.worker.log, refresh_every=2)
    assert await freshness.is_due(newest, starved=False) is due


async def test_never_starved__without_capacity_what_is_not_due_is_loaded(case: Case) -> None:
    store: Any = SimpleNamespace(version=lambda run, version: named(5, 4))
    freshness = Freshness(store, case.run, "W0", case.engine, case.worker.log, refresh_every=3)
    assert await freshness.is_due(named(6, 5), starved=True)
    assert not await freshness.is_due(named(6, 5), starved=False)
