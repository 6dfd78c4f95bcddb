"""Sandboxes taken at their first use: what is held when, and what a failed acquisition leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from sandboxes.contract import SandboxError, SandboxSpec, SandboxUnavailable, Usage
from sandboxes.lazy import SandboxQueue

FASTER = 120
SMALL, LARGE = SandboxSpec(memory_mb=64), SandboxSpec(memory_mb=512)


class Box:
    usage = Usage()

    id = "box"

    async def ping(self) -> None: ...


class SmallPool:
    """At most ``size`` boxes are out at once; who wants one more waits, and a minute is half a second."""

    def __init__(self, size: int, broken: SandboxSpec | None = None) -> None:
        self.room = asyncio.Semaphore(size)
        self.broken = broken
        self.specs: list[SandboxSpec] = []
        self.firsts: list[bool] = []
        self.held = 0

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec, *, timeout: float | None = 60.0, first: bool = False) -> AsyncIterator[Any]:
        if spec == self.broken:
            raise SandboxUnavailable("3 failed starts")
        try:
            async with asyncio.timeout(timeout and timeout / FASTER):
                await self.room.acquire()
        except TimeoutError:
            raise SandboxUnavailable("none in time") from None
        self.specs.append(spec)
        self.firsts.append(first)
        self.held += 1
        try:
            yield Box()
        finally:
            self.held -= 1
            self.room.release()

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


async def test_first_use__takes_and_release_gives_back() -> None:
    pool = SmallPool(1)
    reserved = SandboxQueue(pool).reserve({"": SMALL})
    box = reserved.boxes[""]
    assert (pool.held, box.id) == (0, "none yet")
    await asyncio.gather(box.ping(), box.ping())
    assert (pool.held, box.id, pool.specs) == (1, "box", [SMALL])
    await reserved.release()
    assert pool.held == 0
    await box.ping()
    await box.renew()
    assert (pool.held, len(pool.specs)) == (0, 2)


async def test_no_hold_and_wait__many_episodes_with_two_sandboxes_share_a_pool_of_two() -> None:
    pool = SmallPool(2)
    queue = SandboxQueue(pool)

    async def episode(first: str, second: str) -> None:
        reserved = queue.reserve({"a": SMALL, "b": LARGE})
        await reserved.boxes[first].ping()
        await asyncio.sleep(0)
        await reserved.boxes[second].ping()
        await reserved.release()

    await asyncio.gather(*(episode(*names) for names in [("a", "b"), ("b", "a")] * 20))
    assert pool.held == 0
    assert pool.specs.count(SMALL) == pool.specs.count(LARGE) == 40


async def test_nothing_is_kept__by_an_acquisition_that_failed_or_was_cancelled() -> None:
    pool = SmallPool(2, broken=LARGE)
    with pytest.raises(SandboxUnavailable):
        await SandboxQueue(pool).reserve({"a": SMALL, "b": LARGE}).boxes["a"].ping()
    assert pool.specs == [SMALL]
    assert pool.held == 0
    pool = SmallPool(1)
    reserved = SandboxQueue(pool).reserve({"a": SMALL, "b": LARGE})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reserved.boxes["a"].ping(), 0.05)
    assert pool.held == 0


async def test_nothing_is_kept__by_a_task_that_outlives_its_episode() -> None:
    pool = SmallPool(2)
    queue = SandboxQueue(pool)
    first, second = (queue.reserve({"a": SMALL, "b": LARGE}) for _ in range(2))
    early = asyncio.create_task(first.boxes["a"].ping())
    await first.close()
    with pytest.raises(SandboxError, match="after its episode"):
        await early
    await second.boxes["a"].ping()
    third = queue.reserve({"a": SMALL, "b": LARGE})
    late = [asyncio.create_task(third.boxes[name].ping()) for name in "ab"]
    await asyncio.sleep(0.01)
    await third.close()  # at once, although its sandboxes are still waited for
    assert pool.held == 2
    await second.close()
    for task in late:
        with pytest.raises(SandboxError, match="after its episode"):
            await task
    assert pool.held == 0
    with pytest.raises(SandboxError, match="after its episode"):
        await second.boxes["a"].ping()
    assert pool.held == 0


async def test_graders_are_first__among_sets_of_several_too() -> None:
    pool, order = SmallPool(2), []
    queue = SandboxQueue(pool)

    async def use(number: int, first: bool) -> None:
        reserved = queue.reserve({"a": SMALL, "b": LARGE}, first=first)
        await reserved.boxes["a"].ping()
        order.append(number)
        await reserved.close()

    holder = queue.reserve({"a": SMALL, "b": LARGE})
    await holder.boxes["a"].ping()
    users = [asyncio.ensure_future(use(number, first=number in (4, 6))) for number in range(8)]
    await asyncio.sleep(0.01)
    await holder.close()
    await asyncio.gather(*users)
    assert order == [0, 4, 6, 1, 2, 3, 5, 7], "0 was being taken"
    assert pool.firsts == [False, False] * 2 + [True] * 4 + [False, False] * 5


async def test_busy_is_not_broken__who_waits_longer_than_a_minute_gets_one() -> None:
    queue = SandboxQueue(SmallPool(1))
    first, second = (queue.reserve({"": SMALL}) for _ in range(2))
    await first.boxes[""].ping()
    waiting = asyncio.create_task(second.boxes[""].ping())
    await asyncio.sleep(2 * 60 / FASTER)
    assert not waiting.done()
    await first.release()
    await waiting


async def test_wait__is_marked_and_work_is_not() -> None:
    log: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        log.append("wait")
        yield
        log.append("have")

    box = SandboxQueue(SmallPool(1), waiting).reserve({"": SMALL}).boxes[""]
    await box.ping()
    await box.ping()
    assert log == ["wait", "have"]
