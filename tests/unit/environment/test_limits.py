"""Time limits stand still while a sandbox is waited for, and only then."""

from __future__ import annotations

import asyncio

from agentrl.environment.limits import limited, uncounted


async def wait(seconds: float) -> None:
    with uncounted():
        await asyncio.sleep(seconds)


async def within(limit_s: float, *waits_s: float, work_s: float = 0.0) -> bool:
    """Whether waits at the same time and then work fit into a limit."""
    try:
        async with limited(limit_s) as limit:
            await asyncio.gather(*map(wait, waits_s))
            await asyncio.sleep(work_s)
    except TimeoutError:
        assert limit.expired
        return False
    return True


async def test_waiting__does_not_count_for_any_limit_around() -> None:
    async with limited(0.3) as outer:
        assert await within(0.2, 0.4)
    assert not outer.expired


async def test_work_after_waiting__still_counts() -> None:
    assert not await within(0.05, 0.1, work_s=5)
    assert not await within(0.05, work_s=5)


async def test_two_tasks_that_wait__stop_their_common_limit_until_both_have_what_they_wait_for() -> None:
    assert await within(0.3, 0.02, 0.5)
    assert not await within(0.05, 0.01, 0.02, work_s=5)


async def test_task_left_behind__moves_no_limit_that_is_over() -> None:
    async with limited(5):
        left = asyncio.create_task(wait(0.05))
        await asyncio.sleep(0)
    await left
