"""The pool's invariants about what is started for whom, over a provider that the test controls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stock_provider import OTHER, SPEC, Stock, use

from sandboxes import pool as pool_module
from sandboxes import starter, starts
from sandboxes.contract import (
    Sandbox,
    SandboxError,
    SandboxImageError,
    SandboxSpec,
    SandboxUnavailable,
    SandboxUnsupported,
)
from sandboxes.pool import Pool


@pytest.fixture(autouse=True)
def starts_of_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "cache_directory", lambda: tmp_path)


async def test_no_kind_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_PATIENCE_S", 0.01)
    stock = Stock()
    pool = Pool(stock, size=2)
    served = 0
    rare: list[asyncio.Task[None]] = []

    async def common() -> None:
        nonlocal served
        while not rare or not rare[0].done():
            await use(pool, hold_s=0.001)
            served += 1

    async def seldom() -> None:
        for _ in range(3):
            await use(pool, OTHER, timeout=2.0)

    many = [asyncio.ensure_future(common()) for _ in range(5)]
    while served < 10:
        await asyncio.sleep(0.001)
    rare.append(asyncio.ensure_future(seldom()))
    await asyncio.gather(*many, *rare)
    assert stock.most_alive == 2
    await pool.close()


async def test_no_kind_starves__and_kinds_that_stand_do_not_take_turns_by_new_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_PATIENCE_S", 0.0)
    pool = Pool(Stock(), size=2)
    async with pool.acquire(SPEC), pool.acquire(OTHER):
        users = [asyncio.ensure_future(use(pool, spec)) for spec in [SPEC, OTHER] * 20]
        while pool.metrics()["waiting"] < len(users):
            await asyncio.sleep(0)
    await asyncio.gather(*users)
    assert pool.metrics()["starts"] <= 3, "one more at most, when a line is empty"
    await pool.close()


async def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter.os, "cpu_count", lambda: 2)
    stock = Stock()
    pool = Pool(stock, size=6)
    await asyncio.gather(*(use(pool, spec, 0.002) for spec in [SPEC, OTHER] * 30))
    assert stock.most_starting == 2
    assert stock.most_alive == 6
    await pool.close()


async def test_bounded__idle_ones_of_another_spec_make_room() -> None:
    stock = Stock()
    pool = Pool(stock, size=2)
    await pool.warm(SPEC, 2)
    assert (await use(pool, OTHER)).spec is OTHER
    assert stock.most_alive == 2
    await pool.close()


async def test_failing_provider_is_left_alone() -> None:
    stock, attempts = Stock(), []

    def fail() -> Exception:
        attempts.append(asyncio.get_running_loop().time())
        return SandboxUnavailable("the daemon is away")

    stock.fail = fail
    pool = Pool(stock, size=4)
    with pytest.raises(SandboxUnavailable, match="the daemon is away"):
        await use(pool)
    first = len(attempts)
    assert 3 <= first <= 6
    with pytest.raises(SandboxUnavailable, match=r"within 0\.2 s.*the daemon is away"):
        await use(pool, timeout=0.2)
    assert len(attempts) == first, "no attempt during the pause"
    stock.fail = lambda: None
    assert await use(pool, timeout=10), "and it is tried again after the pause"
    await pool.close()


async def test_failed_starts_fail_those_who_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one place is needed for a kind that can't be started, and then for one that can."""
    monkeypatch.setattr(starter, "_FIRST_PAUSE_S", 0.01)
    stock = Stock()
    stock.fail = lambda: SandboxUnavailable("this kind can't start") if stock.asked is SPEC else None
    pool = Pool(stock, size=1)
    failed, served = await asyncio.gather(use(pool), use(pool, OTHER, timeout=2.0), return_exceptions=True)
    assert isinstance(failed, SandboxUnavailable)
    assert served is stock.boxes[0]
    await pool.close()


@pytest.mark.parametrize("error", [SandboxUnavailable("the host is full"), SandboxImageError("the image is gone")])
async def test_failed_starts_fail_those_who_depend_on_them__and_nobody_whose_kind_stands(
    error: SandboxError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "_FIRST_PAUSE_S", 0.002)
    stock = Stock()
    pool = Pool(stock, size=4)
    await pool.warm(SPEC, 2)
    stock.fail = lambda: error

    async def one() -> None:
        async with pool.acquire(SPEC):
            while pool.metrics()["start_failures"] < 4:
                await asyncio.sleep(0.001)

    await asyncio.gather(*(one() for _ in range(8)))
    assert pool.metrics()["start_failures"] < 20, "the pauses hold while others are served"
    for box in stock.boxes:
        box.dead = True
    with pytest.raises(type(error), match=str(error)):
        await use(pool)
    await pool.close()


@pytest.mark.parametrize("kind", [SandboxUnsupported, SandboxImageError])
async def test_spec_that_is_refused__is_told_at_once_and_not_tried_again(kind: type[SandboxError]) -> None:
    stock = Stock()
    stock.fail = lambda: kind("no such limit or image")
    pool = Pool(stock, size=2)
    with pytest.raises(kind, match="no such limit or image"):
        await use(pool)
    assert pool.metrics()["starts"] == 1
    stock.fail = lambda: None
    assert await use(pool, OTHER), "the provider is not blamed: other specs start without a pause"
    await pool.close()


async def test_warm__has_the_image_made_before_its_time_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_WARM_S", 1.0)
    stock, made = Stock(), asyncio.Event()
    create = stock.create

    async def digest(spec: SandboxSpec) -> str:
        made.set()
        return "stock"

    async def create_from_image(spec: SandboxSpec) -> Sandbox:
        await made.wait()  # longer than a start may take
        return await create(spec)

    stock.digest, stock.create = digest, create_from_image  # type: ignore[method-assign]
    pool = Pool(stock, size=1)
    await pool.warm(SPEC, 1)
    assert pool.metrics()["warm"] == 1
    await pool.close()


async def test_provider_raises_anything__is_a_failed_start_not_a_stuck_pool() -> None:
    stock = Stock()
    errors = iter([KeyError("bug"), KeyError("bug")])
    stock.fail = lambda: next(errors, None)
    pool = Pool(stock, size=1)
    assert await use(pool)
    assert pool.metrics()["start_failures"] == 2
    await pool.close()
