"""The pool's invariants about who gets a sandbox and what is left, over a provider that the test controls."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from stock_provider import OTHER, SPEC, Stock, use

from sandboxes import pool as pool_module
from sandboxes import starts, wear
from sandboxes.contract import (
    Sandbox,
    SandboxSpec,
    SandboxUnavailable,
)
from sandboxes.pool import Pool


@pytest.fixture(autouse=True)
def starts_of_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "cache_directory", lambda: tmp_path)


async def test_first_come_first_served() -> None:
    pool, order = Pool(Stock(), size=1), []

    async def one(number: int) -> None:
        async with pool.acquire(SPEC):
            order.append(number)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(one(number) for number in range(20)))
    assert order == list(range(20))
    await pool.close()


async def test_first_come_first_served__and_those_before_who_asked_to_be_first() -> None:
    pool, order = Pool(Stock(), size=1), []

    async def one(number: int, first: bool) -> None:
        async with pool.acquire(SPEC, first=first):
            order.append(number)

    async with pool.acquire(SPEC):
        users = [asyncio.ensure_future(one(number, first=number in (3, 5))) for number in range(6)]
        while pool.metrics()["waiting"] < len(users):
            await asyncio.sleep(0)
    await asyncio.gather(*users)
    assert order == [3, 5, 0, 1, 2, 4]
    await pool.close()


async def test_first_come_first_served__a_waiter_that_gave_up_is_not_in_the_way() -> None:
    """In one step of the loop somebody asks, the waiter is cancelled and the sandbox comes free."""
    stock = Stock()
    pool = Pool(stock, size=1)
    tasks: list[asyncio.Task[Any]] = []

    async def reset(sandbox: Any) -> bool:
        sandbox.dirty = False
        if len(tasks) == 1:
            tasks.append(asyncio.ensure_future(use(pool, timeout=1.0)))
            tasks[0].cancel()
        return True

    stock.reset = reset  # type: ignore[method-assign]
    async with pool.acquire(SPEC):
        tasks.append(asyncio.ensure_future(use(pool)))
        while not pool.metrics()["waiting"]:
            await asyncio.sleep(0)
    await asyncio.wait(tasks[:1])
    assert tasks[0].cancelled()
    assert await tasks[1] is stock.boxes[0]
    await pool.close()


async def test_handed_out_alive() -> None:
    stock = Stock()
    pool = Pool(stock, size=2)
    await pool.warm(SPEC, 2)
    for box in stock.boxes:
        box.dead = True
    assert not (await use(pool)).dead
    assert pool.metrics()["deaths"] == 2
    await pool.close()
    assert stock.alive == []


async def test_handed_out_clean() -> None:
    stock = Stock()
    doubts = iter([False, True, False, True] * 100)
    stock.doubt = lambda: next(doubts)
    pool = Pool(stock, size=2)
    await asyncio.gather(*(use(pool) for _ in range(40)))
    assert len(stock.boxes) > 10, "the control: sandboxes in doubt were replaced"
    await pool.close()


async def test_handed_out_clean__not_after_the_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wear, "MAX_USES", 3)
    monkeypatch.setattr(wear, "_FIRST_SHARE", 1.0)
    monkeypatch.setattr(wear, "_LAST_SHARE", 1.0)
    stock = Stock()
    pool = Pool(stock, size=1)
    used = [await use(pool) for _ in range(9)]
    assert [used.count(box) for box in stock.boxes[:3]] == [3, 3, 3]
    await pool.close()


async def test_relieved_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wear, "MAX_USES", 40)
    stock = Stock()
    pool = Pool(stock, size=2)
    await pool.warm(SPEC, 2)
    fewest, uses = 2, []
    for _ in range(150):
        uses.append(await use(pool))
        await asyncio.sleep(0.003)
        fewest = min(fewest, len(stock.alive))
    assert pool.metrics()["retired"] >= 3, "the control: worn ones went"
    assert pool.metrics()["doubtful"] == 0
    assert fewest == 2, "never one less than before"
    assert stock.most_alive == 3, "and one more while one is relieved"
    assert max(uses.count(box) for box in stock.boxes) < 40
    assert stock.most_starting <= 2
    await pool.close()
    assert stock.alive == []


async def test_relieved_before_it_goes__after_the_episode_that_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wear, "MAX_USES", 4)
    stock = Stock()
    pool = Pool(stock, size=1)
    for _ in range(3):
        worn = await use(pool)
    async with pool.acquire(SPEC) as box:
        assert box is worn, "the control: the relief is on its way"
        while len(stock.boxes) < 2:
            await asyncio.sleep(0.001)
        assert not worn.destroyed
    while not worn.destroyed:
        await asyncio.sleep(0.001)
    assert await use(pool) is stock.boxes[1]
    assert len(stock.boxes) == 2, "nothing was started for one that was relieved"
    await pool.close()


async def test_relieved_before_it_goes__serves_on_when_no_relief_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wear, "MAX_USES", 40)
    stock = Stock()
    pool = Pool(stock, size=1)
    first = await use(pool)
    stock.fail = lambda: SandboxUnavailable("the daemon is away")
    assert {await use(pool) for _ in range(38)} == {first}
    assert pool.metrics()["start_failures"] > 0, "the control: it was tried"
    assert stock.alive == [first]
    await pool.close()


async def test_nothing_leaks() -> None:
    stock = Stock()
    chance = random.Random(3)
    stock.doubt = lambda: chance.random() < 0.2
    stock.fail = lambda: SandboxUnavailable("now and then") if chance.random() < 0.1 else None
    pool = Pool(stock, size=3)

    async def one() -> None:
        spec = chance.choice([SPEC, OTHER])
        task = asyncio.ensure_future(use(pool, spec, chance.random() * 0.003))
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.02)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(one() for _ in range(300)))
    assert pool.metrics()["busy"] == pool.metrics()["waiting"] == 0
    await use(pool), await use(pool, OTHER)
    await pool.close()
    assert stock.alive == []
    assert all(box.destroyed == 1 for box in stock.boxes)
    assert pool.metrics()["existing"] == pool.metrics()["starting"] == 0


async def test_nothing_leaks__of_holders_at_the_end() -> None:
    stock = Stock()
    pool = Pool(stock, size=2)
    holders = [asyncio.ensure_future(use(pool, hold_s=10)) for _ in range(2)]
    waiter = asyncio.ensure_future(use(pool))
    while pool.metrics()["busy"] < 2:
        await asyncio.sleep(0.001)
    await pool.close()
    assert stock.alive == []
    with pytest.raises(SandboxUnavailable, match="closed"):
        await waiter
    with pytest.raises(SandboxUnavailable, match="closed"):
        await use(pool)
    for holder in holders:
        holder.cancel()
    await asyncio.gather(*holders, return_exceptions=True)
    assert all(box.destroyed == 1 for box in stock.boxes)


async def test_nothing_leaks__of_one_that_is_asked_whether_it_lives_at_the_end() -> None:
    stock, asked, answer = Stock(), asyncio.Event(), asyncio.Event()
    pool = Pool(stock, size=1)
    await pool.warm(SPEC, 1)

    async def ping() -> None:
        asked.set()
        await answer.wait()

    stock.boxes[0].ping = ping  # type: ignore[method-assign]
    taking = asyncio.ensure_future(use(pool))
    await asked.wait()
    await pool.close()
    assert stock.boxes[0].destroyed == 1
    answer.set()
    with pytest.raises(SandboxUnavailable, match="closed"):
        await taking
    assert pool.metrics()["existing"] == pool.metrics()["busy"] == 0


@pytest.mark.parametrize("of_group", [False, True])
async def test_nothing_leaks__of_one_that_was_just_given_at_the_end(of_group: bool) -> None:
    stock = Stock()
    pool = Pool(stock, size=1)
    closing: list[asyncio.Task[None]] = []

    async def reset(sandbox: Any) -> bool:
        closing.append(asyncio.ensure_future(pool.close()))  # it runs before the waiter does
        return True

    stock.reset = reset  # type: ignore[method-assign]
    async with pool.acquire(SPEC):
        waiting = asyncio.ensure_future(enter(pool.acquire_group(SPEC, 1) if of_group else pool.acquire(SPEC)))
        while not pool.metrics()["waiting"]:
            await asyncio.sleep(0)
    with pytest.raises(SandboxUnavailable, match="closed"):
        await waiting
    await closing[0]
    assert [box.destroyed for box in stock.boxes] == [1]
    assert pool.metrics()["deaths"] == pool.metrics()["doubtful"] == 0


async def test_groups_are_whole() -> None:
    stock = Stock()
    pool = Pool(stock, size=4)
    most_waiting = 0

    async def group(number: int) -> None:
        async with pool.acquire_group(SPEC, 3, timeout=20) as boxes:
            assert len({id(box) for box in boxes}) == 3
            assert not any(box.dirty or box.dead for box in boxes)  # type: ignore[attr-defined]
            for box in boxes:
                box.dirty = True  # type: ignore[attr-defined]
            await asyncio.sleep(0.002)

    async def alone() -> None:
        nonlocal most_waiting
        most_waiting = max(most_waiting, int(pool.metrics()["waiting"]))
        await use(pool, hold_s=0.001)

    await asyncio.gather(*(group(number) for number in range(10)), *(alone() for _ in range(20)))
    assert most_waiting > 0, "the control: there was not enough for all"
    assert stock.most_alive <= 4
    await pool.close()
    assert stock.alive == []


async def test_groups_are_whole__or_nothing_is_held() -> None:
    stock = Stock()
    pool = Pool(stock, size=3)
    async with pool.acquire(SPEC):
        with pytest.raises(SandboxUnavailable, match=r"2 of 3|3 of 3"):
            async with pool.acquire_group(SPEC, 3, timeout=0.1):
                raise AssertionError("a group of 3 beside one that is held")
        collecting = asyncio.ensure_future(enter(pool.acquire_group(SPEC, 3)))
        while pool.metrics()["waiting"] == 0:
            await asyncio.sleep(0.001)
        with pytest.raises(SandboxUnavailable, match="another group"):
            await enter(pool.acquire_group(SPEC, 2, timeout=0.05))
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        async with pool.acquire_group(SPEC, 2, timeout=5) as boxes:
            assert len(boxes) == 2
    for count in (0, 4):
        with pytest.raises(ValueError, match="room for 3"):
            pool.acquire_group(SPEC, count)
    await pool.close()
    assert stock.alive == []


async def enter(group: Any) -> None:
    async with group:
        pass


async def test_nothing_leaks__of_a_warm_up_that_is_cancelled() -> None:
    stock = Stock()
    delays = iter([0.001, 0.001, 10.0, 10.0])
    create = stock.create

    async def slow(spec: SandboxSpec) -> Sandbox:
        await asyncio.sleep(next(delays))
        return await create(spec)

    stock.create = slow  # type: ignore[method-assign]
    pool = Pool(stock, size=4)
    warming = asyncio.ensure_future(pool.warm(SPEC, 4))
    while len(stock.boxes) < 2 and not warming.done():
        await asyncio.sleep(0.001)
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    assert pool.metrics()["warm"] == len(stock.boxes), "what stood already is kept for later"
    for task in list(pool._tasks):
        task.cancel()
    await pool.close()
    assert stock.alive == []


async def test_remains_are_swept__now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_SWEEP_S", 0.01)
    stock = Stock()
    pool = Pool(stock, size=1)
    await use(pool)
    while pool.metrics()["swept"] < 2:
        await asyncio.sleep(0.005)
    swept = stock.sweeps
    await pool.close()
    assert stock.sweeps > swept
    assert pool.metrics()["swept"] == stock.sweeps


async def test_metrics__add_up_what_was_done_in_the_sandboxes() -> None:
    pool = Pool(Stock(), size=1)
    for _ in range(2):
        async with pool.acquire(SPEC) as box:
            box.usage.commands += 3
            box.usage.command_s += 0.5
            box.usage.timeouts += 1
    assert {name: pool.metrics()[name] for name in ("commands", "command_s", "timeouts")} == {
        "commands": 6,
        "command_s": 1.0,
        "timeouts": 2,
    }
    await pool.close()


async def test_wait_is_over__says_who_holds_what() -> None:
    pool = Pool(Stock(), size=1)
    async with pool.acquire(SPEC):
        with pytest.raises(SandboxUnavailable, match=r"within 0\.05 s: 1 of 1 exist, 1 in use"):
            await use(pool, timeout=0.05)
    await pool.close()
