"""Starts of a pool: a few at once, and after failures in a row ever more rarely."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass

from sandboxes.contract import Provider, SandboxSpec, SandboxUnavailable
from sandboxes.starts import HostStarts
from sandboxes.stock import Counts, Member, SpecKey
from sandboxes.wear import planned_share

_FAILURES_TO_OPEN = 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


@dataclass
class Breaker:
    """Consecutive failed starts, and until when the next one waits."""

    failures: int = 0
    closed_until: float = 0.0
    last_error: str = ""

    def failed(self, error: BaseException) -> None:
        self.failures += 1
        self.last_error = str(error)
        if self.failures >= _FAILURES_TO_OPEN:
            pause = min(_FIRST_PAUSE_S * 2 ** (self.failures - _FAILURES_TO_OPEN), _LONGEST_PAUSE_S)
            self.closed_until = time.monotonic() + pause

    def worked(self) -> None:
        self.failures = 0

    @property
    def pause_s(self) -> float:
        return max(0.0, self.closed_until - time.monotonic()) if self.failures >= _FAILURES_TO_OPEN else 0.0

    def __str__(self) -> str:
        return f"{self.failures} failed starts: {self.last_error}"


class Starter:
    """``closing``: nothing is started any more."""

    def __init__(self, provider: Provider, counts: Counts, closing: asyncio.Event) -> None:
        cores = os.cpu_count() or 1
        self.breaker = Breaker()
        self._provider = provider
        self._counts = counts
        self._closing = closing
        self._at_once = asyncio.Semaphore(cores)
        self._host = HostStarts(cores)

    async def start(self, spec: SandboxSpec, key: SpecKey) -> Member:
        """Start one as soon as it may be. Raises whatever the provider does; who catches it tells the breaker."""
        async with self._at_once:
            await self._pause()
            async with self._host.slot():
                if self._closing.is_set():
                    raise SandboxUnavailable("the pool is closed")
                return await self._create(spec, key)

    async def _pause(self) -> None:
        if self.breaker.pause_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.breaker.pause_s):
                    await self._closing.wait()

    async def _create(self, spec: SandboxSpec, key: SpecKey) -> Member:
        began = time.monotonic()
        self._counts.starts += 1
        try:
            sandbox = await self._provider.create(spec)
        except Exception:
            self._counts.start_failures += 1
            raise
        self.breaker.worked()
        self._counts.start_s += time.monotonic() - began
        return Member(sandbox, key, began, planned_share(self._counts.starts))
