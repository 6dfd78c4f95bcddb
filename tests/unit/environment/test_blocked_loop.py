"""An async method that blocks the event loop is named with its line; one that only waits, or code of others, is not."""

from __future__ import annotations

import asyncio
import time

from agentrl.environment.blocked_loop import told_when_blocked
from agentrl.environment.boundary import invoke


async def blocks(seconds: float) -> None:
    time.sleep(seconds)


async def waits(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def test_blocking_method__is_told_once_with_file_and_line() -> None:
    said: list[str] = []
    with told_when_blocked(said.append, after_s=0.02):
        await invoke("mine", "one", "tool", blocks, 0.3, timeout_s=10.0)
    (line,) = said
    assert f"test_blocked_loop.py:{blocks.__code__.co_firstlineno + 1})" in line


async def test_method_that_waits_and_loop_blocked_by_others__are_not_told() -> None:
    said: list[str] = []
    with told_when_blocked(said.append, after_s=0.02):
        await invoke("mine", "one", "tool", waits, 0.1, timeout_s=10.0)
        time.sleep(0.1)
    assert said == []
