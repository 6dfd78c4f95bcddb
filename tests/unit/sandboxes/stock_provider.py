"""A provider of sandboxes that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sandboxes.contract import (
    Capabilities,
    Sandbox,
    SandboxDied,
    SandboxSpec,
    Usage,
)
from sandboxes.pool import Pool

SPEC, OTHER = SandboxSpec(), SandboxSpec(env={"A": "1"})


class Box:
    """A sandbox that remembers what happened to it."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.dead = False
        self.dirty = False
        self.destroyed = 0
        self.usage = Usage()

    async def ping(self) -> None:
        await asyncio.sleep(0)
        if self.dead:
            raise SandboxDied("dead")


class Stock:
    """Makes boxes; ``fail`` and ``doubt`` say what goes wrong."""

    name = "stock"
    capabilities = Capabilities(True, True, True, True, True, True)

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.fail: Callable[[], Exception | None] = lambda: None
        self.doubt: Callable[[], bool] = lambda: False
        self.starting = self.most_starting = self.most_alive = 0
        self.delay_s = 0.001
        self.sweeps = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await asyncio.sleep(self.delay_s)
            self.asked = spec
            if error := self.fail():
                raise error
        finally:
            self.starting -= 1
        self.boxes.append(Box(spec))
        self.most_alive = max(self.most_alive, len(self.alive))
        return self.boxes[-1]  # type: ignore[return-value]

    async def reset(self, sandbox: Any) -> bool:
        await asyncio.sleep(0.0005)
        if sandbox.dead:
            raise SandboxDied("dead")
        if self.doubt():
            return False
        sandbox.dirty = False
        return True

    async def destroy(self, sandbox: Any) -> None:
        await asyncio.sleep(0.0005)
        sandbox.destroyed += 1

    async def digest(self, spec: SandboxSpec) -> str:
        return "stock"

    async def sweep(self) -> int:
        self.sweeps += 1
        return 1

    @property
    def alive(self) -> list[Box]:
        return [box for box in self.boxes if not box.destroyed]


async def use(pool: Pool, spec: SandboxSpec = SPEC, hold_s: float = 0.0, timeout: float = 20.0) -> Any:
    async with pool.acquire(spec, timeout=timeout) as box:
        assert not box.dirty  # type: ignore[attr-defined]
        box.dirty = True  # type: ignore[attr-defined]
        await asyncio.sleep(hold_s)
        return box
