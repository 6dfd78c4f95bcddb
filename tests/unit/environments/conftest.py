"""Real sandboxes without isolation, which every machine has: the programs run here are written by the tests themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.contract import ExecResult, Sandbox, SandboxSpec
from sandboxes.local import UnsafeLocal
from sandboxes.pool import Pool


class Recorded:
    """A sandbox that keeps the programs it was given; only what the environments use."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.id, self.usage = sandbox.id, sandbox.usage
        self.programs: list[str] = []

    async def run_python(
        self, code: str | bytes, *, timeout: float = 10.0, max_output: int = 65536, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        self.programs.append(code if isinstance(code, str) else code.decode())
        return await self.sandbox.run_python(code, timeout=timeout, max_output=max_output, env=env)


class RecordedPool:
    """A pool that keeps what it handed out."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.given: list[Recorded] = []

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0, first: bool = False) -> AsyncIterator[Recorded]:
        async with self.pool.acquire(spec, timeout=timeout, first=first) as sandbox:
            self.given.append(Recorded(sandbox))
            yield self.given[-1]


@pytest.fixture
async def pool() -> AsyncIterator[RecordedPool]:
    pool = Pool(UnsafeLocal(), 2)
    yield RecordedPool(pool)
    await pool.close()


@pytest.fixture
async def box(pool: RecordedPool) -> AsyncIterator[Recorded]:
    async with pool.acquire(SandboxSpec()) as box:
        yield box


@pytest.fixture
async def isolated() -> AsyncIterator[Pool]:
    """Sandboxes as runs have them on a machine without a container engine."""
    pool = Pool(Bubblewrap(), 2)
    yield pool
    await pool.close()


@pytest.fixture
async def isolated_box(isolated: Pool) -> AsyncIterator[Sandbox]:
    async with isolated.acquire(SandboxSpec(memory_mb=256, pids=64)) as box:
        yield box
