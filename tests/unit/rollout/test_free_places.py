"""A worker asks for another episode whenever the store may admit one, and not when it can't."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from commanded import LINEAGE, PLACES, Case, eventually

from agentrl.types import Place


@pytest.mark.parametrize("spec", [{}, {"lag_bound": None, "max_running": PLACES}])
async def test_place__that_comes_free_while_the_store_is_asked_is_filled_too(tmp_path: Path, spec: dict[str, Any]) -> None:
    case = Case(tmp_path, **spec)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == PLACES)
        case.store.gate.clear()
        asked = case.store.asked
        case.runner.end(1)
        await eventually(lambda: case.store.asked == asked + 1)
        case.runner.end(1)
        await eventually(lambda: len(case.runner.running) == PLACES - 2)
        case.store.gate.set()
        await eventually(lambda: len(case.runner.running) == PLACES)


async def test_end__asks_for_nothing_while_what_is_ready_fills_the_bound(tmp_path: Path) -> None:
    case = Case(tmp_path, lag_bound=0, batch_min=PLACES - 1, batch_max=PLACES - 1)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == PLACES - 1)
        await asyncio.sleep(0.2)
        asked = case.store.asked
        case.runner.end(1)
        await asyncio.sleep(0.2)
        assert len(case.runner.running) == PLACES - 2
        assert case.store.asked == asked


async def test_episode_without_an_action__makes_room_at_once(tmp_path: Path) -> None:
    case = Case(tmp_path, acts=False, lag_bound=0, batch_min=2, batch_max=2)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == 2)
        first = next(iter(case.runner.running))
        await asyncio.sleep(0.2)
        case.runner.end(1)
        await eventually(lambda: len(case.runner.running) == 2 and first not in case.runner.running)


async def test_liveness__without_anything_to_do_weights_that_were_not_due_are_loaded(tmp_path: Path) -> None:
    case = Case(tmp_path, refresh_every=2, lag_bound=1, batch_min=1, batch_max=1)
    async with case.serving():
        await eventually(lambda: len(case.runner.running) == 2)
        case.runner.end(1)
        await eventually(lambda: case.count(Place.READY) == 1)
        claim = case.store.claim(case.run.id, case.fence, n_min=1, n_max=1, lease_s=60)
        case.step(1, [(item.item, item.token) for item in claim.items])
        case.publish(1)
        await asyncio.sleep(0.2)
        case.runner.end(2)
        await eventually(lambda: case.engine.version == 1)


async def test_evaluation_of_which_the_rest_is_with_others__is_asked_for_rarely(tmp_path: Path) -> None:
    case = Case(tmp_path, evaluate=True)
    case.store.set_run_status(case.run.id, "running")
    evaluation = case.store.request_evaluation(case.run.id, version=0, step=0, split="heldout", n=1)
    case.store.open_evaluation_episodes(evaluation.id, worker="killed", request=uuid4(), n=1, lineage=LINEAGE)
    async with case.serving():
        await asyncio.sleep(0.3)
    assert case.store.asked <= 3
