"""Who waits for a sandbox of a pool, in order.

A waiter whose task was cancelled stands here until that task runs next; it counts no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sandboxes.contract import SandboxError, SandboxSpec
from sandboxes.stock import Member, SpecKey


@dataclass(eq=False)
class Waiter:
    spec: SandboxSpec
    key: SpecKey
    served: asyncio.Future[Member]
    first: bool = False
    """Before all who are not."""
    since: float = field(default_factory=time.monotonic)

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.since


class Line:
    def __init__(self) -> None:
        self._waiters: list[Waiter] = []

    def join(self, waiter: Waiter) -> None:
        place = sum(other.first for other in self._waiters) if waiter.first else len(self._waiters)
        self._waiters.insert(place, waiter)

    def leave(self, waiter: Waiter) -> None:
        """Nothing happens when it was served or failed before."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def waits_for(self, key: SpecKey) -> bool:
        return any(waiter.key == key for waiter in self)

    def serve(self, member: Member) -> bool:
        """Give it to the first who waits for its kind; False when nobody does."""
        waiter = next((waiter for waiter in self if waiter.key == member.key), None)
        if waiter is None:
            return False
        self._waiters.remove(waiter)
        waiter.served.set_result(member)
        return True

    def fail(self, error: SandboxError, key: SpecKey | None = None) -> None:
        """Whoever waits for that kind, None: for any."""
        for waiter in [waiter for waiter in self if key is None or waiter.key == key]:
            self._waiters.remove(waiter)
            waiter.served.set_exception(error)

    def lacking(self, starting: Mapping[SpecKey, int]) -> list[Waiter]:
        """Waiters for whom no start is on its way, in order. ``starting``: how many are, by kind."""
        coming = dict(starting)
        lacking = []
        for waiter in self:
            if coming.get(waiter.key, 0) > 0:
                coming[waiter.key] -= 1
            else:
                lacking.append(waiter)
        return lacking

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for waiter in self._waiters if not waiter.served.done())

    def __len__(self) -> int:
        return sum(1 for _ in self)
