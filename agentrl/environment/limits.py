"""Time limits of calls into an environment's code, which stand still while a sandbox is waited for.

How busy the machine is must not decide what the policy reads or earns: a queue for sandboxes is nobody's slow code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class Limit:
    """One running limit. `uncounted` may be entered by several tasks at once: it runs again when the last has left."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._waiting = 0
        self._left = 0.0
        self._over = False

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    def close(self) -> None:
        """The call is over; a task that it left behind no longer moves the limit."""
        self._over = True

    def pause(self) -> None:
        when = self._timeout.when()
        if self._waiting == 0 and when is not None and not self._over and not self.expired:
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)
        self._waiting += 1

    def resume(self) -> None:
        self._waiting -= 1
        if self._waiting == 0 and not self._over and self._timeout.when() is None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)


_running: ContextVar[tuple[Limit, ...]] = ContextVar("running limits", default=())


@asynccontextmanager
async def limited(seconds: float) -> AsyncIterator[Limit]:
    """TimeoutError, with ``expired`` of the limit true, when the body takes longer than ``seconds``."""
    async with asyncio.timeout(seconds) as timeout:
        limit = Limit(timeout)
        token = _running.set((*_running.get(), limit))
        try:
            yield limit
        finally:
            limit.close()
            _running.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """Time spent inside counts against none of the limits around."""
    limits = _running.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.resume()
