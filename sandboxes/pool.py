"""Warm sandboxes, handed out clean and in order.

Invariants, each with a test of the same name:

- first_come_first_served: acquirers of equal specs are served in the order of their calls, those who asked to be first
  before the others.
- no_kind_starves: who waits for a kind of which none stands gets the place of another kind, however many wait for that one.
- handed_out_alive: a sandbox answers a ping, or has just been reset, at the moment it is handed out.
- handed_out_clean: nothing of a predecessor is in it; a sandbox in doubt is destroyed, as is one after 500 uses.
- relieved_before_it_goes: a worn sandbox serves until the one that takes its place stands; one at a time is relieved.
- nothing_leaks: cancelling an acquirer at any point loses no sandbox; after ``close`` none exists.
- bounded: never more than ``size`` sandboxes exist, and one more while a worn one is relieved; never more starts at once than
  cores, of all processes of this user together.
- failing_provider_is_left_alone: after three failed starts in a row the next waits, twice as long each time.
- failed_starts_fail_those_who_depend_on_them: who waits for a kind of which none stands; the others go on waiting.
- groups_are_whole: who asks for several gets all or none, and holds none while waiting for others who do the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from sandboxes.connection import seconds
from sandboxes.contract import (
    Provider,
    Sandbox,
    SandboxDied,
    SandboxImageError,
    SandboxSpec,
    SandboxUnavailable,
    SandboxUnsupported,
)
from sandboxes.line import Line, Waiter
from sandboxes.starter import Starter
from sandboxes.stock import Counts, Idle, Member, SpecKey
from sandboxes.wear import is_spent, is_worn

_SWEEP_S = 60.0
_WARM_S = 120.0
_PATIENCE_S = 5.0
"""After so long the place of a sandbox of another kind is freed for who waits."""
_CLOSED = "the pool is closed"


class Pool:
    """A `SandboxPool` over one provider, for one event loop.

    ``size``: how many sandboxes exist at most, all specs together; default twice the cores. Whoever needs several at once takes
    them by `acquire_group`: at ``size`` holders that all wait for a second one, nothing moves until the deadlines pass.
    """

    def __init__(self, provider: Provider, size: int | None = None) -> None:
        self.provider = provider
        self.size = 2 * (os.cpu_count() or 1) if size is None else size
        if self.size < 1:
            raise ValueError(f"size is {size}; a pool needs room for one sandbox")
        self._idle = Idle()
        self._standing: set[Member] = set()
        self._busy: set[Member] = set()
        self._line = Line()
        self._starting: Counter[SpecKey] = Counter()
        self._leaving = 0
        self._relief_under_way = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._counts = Counts()
        self._closing = asyncio.Event()
        self._starter = Starter(provider, self._counts, self._closing)
        self._collecting = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def _closed(self) -> bool:
        return self._closing.is_set()

    @property
    def _existing(self) -> int:
        return len(self._standing) + self._starting.total() + self._leaving

    def acquire(
        self, spec: SandboxSpec, *, timeout: float | None = 60.0, first: bool = False
    ) -> AbstractAsyncContextManager[Sandbox]:
        """See `sandboxes.contract.SandboxPool`. The sandbox is reset after the block, without delaying it."""
        return self._acquire(spec, None if timeout is None else seconds(timeout, "timeout"), first)

    def acquire_group(
        self, spec: SandboxSpec, count: int, *, timeout: float = 60.0
    ) -> AbstractAsyncContextManager[Sequence[Sandbox]]:
        """See `sandboxes.contract.SandboxPool`. ValueError for more than the pool has room for."""
        if not 1 <= count <= self.size:
            raise ValueError(f"count is {count}; this pool has room for {self.size}")
        return self._acquire_group(spec, count, seconds(timeout, "timeout"))

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        """Start up to ``count`` sandboxes ahead of their use and wait until they stand, however long their image takes."""
        await self.provider.digest(spec)  # makes the image, within limits of its own
        for member in await self._take_all(spec, min(count, self.size), _WARM_S):
            self._offer(member)

    def metrics(self) -> Mapping[str, float]:
        """Counts since the start, totals in seconds, and how many sandboxes are where right now."""
        now = {"busy": len(self._busy), "warm": len(self._idle), "waiting": len(self._line), "existing": self._existing}
        return {**vars(self._counts), **now, "starting": self._starting.total()}

    async def close(self) -> None:
        """Destroy every sandbox, those in use included, and fail whoever waits."""
        self._closing.set()
        self._line.fail(SandboxUnavailable(_CLOSED))
        self._idle.by_key.clear()
        for member in list(self._standing):
            self._give_up(member)
            self._discard(member)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._sweep()

    @contextlib.asynccontextmanager
    async def _acquire(self, spec: SandboxSpec, timeout: float | None, first: bool) -> AsyncIterator[Sandbox]:
        member = await self._take(spec, timeout, first)
        self._hold(member)
        try:
            yield member.sandbox
        finally:
            self._release(member)

    @contextlib.asynccontextmanager
    async def _acquire_group(self, spec: SandboxSpec, count: int, timeout: float) -> AsyncIterator[Sequence[Sandbox]]:
        give_up = time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self._collecting.acquire()
        except TimeoutError:
            raise SandboxUnavailable(
                f"no group of {count} {self.provider.name} sandboxes within {timeout:g} s: another group is being collected"
            ) from None
        try:
            members = await self._take_all(spec, count, max(0.001, give_up - time.monotonic()))
        finally:
            self._collecting.release()
        for member in members:
            self._hold(member)
        try:
            yield [member.sandbox for member in members]
        finally:
            for member in members:
                self._release(member)

    def _hold(self, member: Member) -> None:
        if self._closed:  # in the moment in which it was given; it is destroyed
            raise SandboxUnavailable(_CLOSED)
        self._busy.add(member)
        member.uses += 1
        if self._sweeper is None:
            self._sweeper = self._spawn(self._sweep_now_and_then())

    def _release(self, member: Member) -> None:
        if self._give_up(member):
            self._spawn(self._recycle(member))

    def _give_up(self, member: Member) -> bool:
        """Count what was done in it. False when it was taken from its holder before."""
        if member not in self._busy:
            return False
        self._busy.discard(member)
        usage, counted = member.sandbox.usage, member.counted
        self._counts.commands += usage.commands - counted.commands
        self._counts.command_s += usage.command_s - counted.command_s
        self._counts.timeouts += usage.timeouts - counted.timeouts
        member.counted = replace(usage)
        return True

    async def _take_all(self, spec: SandboxSpec, count: int, timeout: float) -> list[Member]:
        takes = [asyncio.ensure_future(self._take(spec, timeout)) for _ in range(count)]
        try:
            for take in asyncio.as_completed(takes):
                await take
            return [take.result() for take in takes]
        except BaseException:
            for take in takes:
                take.cancel()
            for taken in await asyncio.gather(*takes, return_exceptions=True):
                if isinstance(taken, Member):
                    self._offer(taken)
            raise

    async def _take(self, spec: SandboxSpec, timeout: float | None, first: bool = False) -> Member:
        started = time.monotonic()
        key = spec_key(spec)
        try:
            async with asyncio.timeout(timeout):
                member = await self._take_warm(key) or await self._wait(Waiter(spec, key, _future(), first))
        except TimeoutError:
            breaker = self._starter.breaker
            why = f"; last failed start: {breaker.last_error}" if breaker.failures else ""
            raise SandboxUnavailable(
                f"no {self.provider.name} sandbox within {timeout:g} s: {self._existing} of {self.size} exist, "
                f"{len(self._busy)} in use, {len(self._line)} waiting{why}"
            ) from None
        waited = time.monotonic() - started
        self._counts.acquires += 1
        self._counts.acquire_wait_s += waited
        self._counts.longest_wait_s = max(self._counts.longest_wait_s, waited)
        return member

    async def _take_warm(self, key: SpecKey) -> Member | None:
        while not self._line.waits_for(key) and (member := self._idle.take(key)):
            try:
                if not is_spent(member) and await self._answers(member):
                    return member
            except asyncio.CancelledError:
                self._discard(member)
                raise
            self._discard(member)
        return None

    async def _wait(self, waiter: Waiter) -> Member:
        if self._closed:
            raise SandboxUnavailable(_CLOSED)
        self._line.join(waiter)
        self._grow()
        try:
            return await waiter.served
        except asyncio.CancelledError:
            if waiter.served.done() and not waiter.served.cancelled() and waiter.served.exception() is None:
                self._offer(waiter.served.result())
            raise
        finally:
            self._line.leave(waiter)

    async def _answers(self, member: Member) -> bool:
        try:
            await member.sandbox.ping()
        except SandboxDied:
            self._counts.deaths += member in self._standing  # else it was destroyed meanwhile
            return False
        return True

    def _offer(self, member: Member) -> None:
        """A clean sandbox for the first who waits for its kind, else for later."""
        if self._closed or self._gives_way(member):
            self._discard(member)
        elif not self._line.serve(member):
            self._idle.put(member)
            self._grow()

    def _gives_way(self, member: Member) -> bool:
        """Whether somebody needs its place who would get none as long as others wait for its kind."""
        next_start = next(iter(self._line.lacking(self._starting)), None)
        if self._leaving or next_start is None or next_start.key == member.key or next_start.waited_s < _PATIENCE_S:
            return False
        return not self._stands(next_start.key) and not self._starting[next_start.key]

    def _grow(self) -> None:
        """Start what waiters lack, as far as the size allows; idle ones of other specs make room."""
        coming = self._leaving
        for waiter in self._line.lacking(self._starting):
            if self._existing < self.size:
                self._begin_start(waiter.spec, waiter.key)
            elif coming > 0:
                coming -= 1
            elif other := self._idle.take_other(waiter.key):
                self._discard(other)

    def _stands(self, key: SpecKey) -> bool:
        """Whether there is one of that kind, which whoever waits for it gets sooner or later."""
        return any(member.key == key for member in self._standing)

    def _begin_start(self, spec: SandboxSpec, key: SpecKey) -> None:
        if not self._closed:
            self._starting[key] += 1
            self._spawn(self._start(spec, key))

    async def _start(self, spec: SandboxSpec, key: SpecKey) -> bool:
        """Whether it stands; it is offered then."""
        failure: Exception | None = None
        try:
            member = await self._starter.start(spec, key)
            self._standing.add(member)
        except Exception as error:  # the provider is foreign code: whatever it raises is a failed start
            failure = error
        finally:
            self._starting[key] -= 1
        if failure is None:
            self._offer(member)
        else:
            self._start_failed(key, failure)
        return failure is None

    def _start_failed(self, key: SpecKey, error: Exception) -> None:
        breaker, stands = self._starter.breaker, self._stands(key)
        if isinstance(error, (SandboxUnsupported, SandboxImageError)) and not stands:
            self._line.fail(error, key)  # another attempt would fail alike
        else:
            breaker.failed(error)
            if breaker.pause_s > 0 and not stands:
                self._line.fail(SandboxUnavailable(str(breaker)), key)
        self._grow()

    async def _recycle(self, member: Member) -> None:
        if self._closed or member.relieved or is_spent(member):
            self._counts.retired += 1
            self._discard(member, replace=not member.relieved)
        elif not await self._is_reset(member):
            self._counts.doubtful += member in self._standing
            self._discard(member, replace=not member.relieved)
        else:
            if is_worn(member) and not self._relief_under_way and self._existing <= self.size and not self._closed:
                self._relief_under_way = True
                self._spawn(self._relieve(member))
            self._offer(member)

    async def _relieve(self, member: Member) -> None:
        """Start what takes its place, and only then let it go: at once, or after the episode that it serves."""
        key = member.key
        self._starting[key] += 1
        try:
            member.relieved = await self._start(member.sandbox.spec, key)
        finally:
            self._relief_under_way = False
        if member.relieved and self._idle.remove(member):
            self._counts.retired += 1
            self._discard(member)

    async def _is_reset(self, member: Member) -> bool:
        started = time.monotonic()
        try:
            return await self.provider.reset(member.sandbox)
        except SandboxDied:
            self._counts.deaths += member in self._standing  # else it was destroyed meanwhile
            return False
        except Exception:  # foreign code again: in doubt
            return False
        finally:
            self._counts.resets += 1
            self._counts.reset_s += time.monotonic() - started

    def _discard(self, member: Member, *, replace: bool = False) -> None:
        """Destroy it, unless that is under way."""
        if member not in self._standing:
            return
        self._standing.discard(member)
        self._counts.discarded += 1
        self._leaving += 1
        self._spawn(self._destroy(member, replace))

    async def _destroy(self, member: Member, replace: bool) -> None:
        try:
            await self.provider.destroy(member.sandbox)
        finally:
            self._leaving -= 1
            if replace and not self._line.lacking(self._starting) and self._existing < self.size:
                self._begin_start(member.sandbox.spec, member.key)
            self._grow()

    async def _sweep_now_and_then(self) -> None:
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_S):
                    await self._closing.wait()
            if not self._closed:
                await self._sweep()

    async def _sweep(self) -> None:
        with contextlib.suppress(Exception):  # foreign code, and a daemon that is away is swept another time
            self._counts.swept += await self.provider.sweep()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def spec_key(spec: SandboxSpec) -> SpecKey:
    """Equal for equal specs, and hashable."""
    fields = {name: getattr(spec, name) for name in spec.__slots__ if name != "env"}
    return (*fields.values(), *sorted(spec.env.items()))


def _future() -> asyncio.Future[Member]:
    return asyncio.get_running_loop().create_future()
