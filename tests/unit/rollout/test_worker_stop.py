"""What a worker that is stopped, or whose episodes were dropped by others, leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from commanded import LINEAGE, PLACES, Case, eventually

from agentrl.errors import WeightsCorrupt
from agentrl.types import Place, PolicyVersion


async def test_clean_release__what_the_store_opens_during_the_stop_is_left_to_others_uncharged(tmp_path: Path) -> None:
    case = Case(tmp_path, lag_bound=0, batch_min=PLACES, batch_max=PLACES)
    case.store.gate.clear()
    async with case.serving() as stop:
        await eventually(lambda: case.store.asked == 1)
        stop.set()
        await asyncio.sleep(0.1)
    assert case.count(Place.LIVE) == 0
    again = case.store.open_episodes(case.run.id, worker="W1", request=uuid4(), n=PLACES, engine_version=0, lineage=LINEAGE)
    assert len(again.episodes) == PLACES
    assert {case.store._find(e.trajectory)[1].failures for e in again.episodes} == {0}  # type: ignore[index]


async def test_doomed_are_stopped__also_those_that_somebody_else_dropped(tmp_path: Path) -> None:
    case = Case(tmp_path, lag_bound=1, batch_min=1, batch_max=1)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == 2)
        doomed = set(case.runner.running)
        with case.store._lock:  # a trainer may ask for its next batch before the worker hears of the step
            for number in (1, 2):
                case.step(number)
                case.store._runs[case.run.id].reaped_at = float("-inf")
                case.store.claim(case.run.id, case.fence, n_min=1, n_max=1, lease_s=60)
                case.publish(number)
        await eventually(lambda: set(case.runner.cut) == doomed)


async def test_burnt_is_waited_out__the_worker_goes_on_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == PLACES)
        load, tried = case.engine.load, asyncio.Event()

        async def damaged(version: PolicyVersion) -> None:
            if version.version == 1:
                tried.set()
                raise WeightsCorrupt("checksum")
            await load(version)

        monkeypatch.setattr(case.engine, "load", damaged)
        case.step(1)
        staged = case.stage(1)
        case.worker._freshness.announced.set()
        await asyncio.wait_for(tried.wait(), 10)
        case.store.fail_version(case.run.id, case.fence, staged.version)
        await asyncio.sleep(0.1)
        assert case.runner.cut == []
        good = case.stage(1)
        case.store.publish_version(case.run.id, case.fence, good.version)
        await eventually(lambda: case.engine.version == good.version)


async def test_weights_that_stay_damaged__end_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path)
    case.worker._freshness.poll_s = 0.02
    await case.engine.load(case.first)

    async def damaged(version: PolicyVersion) -> None:
        raise WeightsCorrupt("checksum")

    monkeypatch.setattr(case.engine, "load", damaged)
    case.step(1)
    case.publish(1)
    with pytest.raises(WeightsCorrupt):
        await asyncio.wait_for(case.worker.serve(asyncio.Event()), 20)
