"""Commands that were started and not waited for: how they ended, and who waits for that now.

What is kept is bounded: of ended jobs the last `_REMEMBERED` results.
"""

from __future__ import annotations

import errno
import time
from typing import Any

from sandboxes.agent.run import Run

_REMEMBERED = 64

Reply = tuple[dict[str, Any], bytes]


class Jobs:
    """By the number of the run."""

    def __init__(self) -> None:
        self._running: dict[int, Run] = {}
        self._ended: dict[int, Reply] = {}
        self._waiters: list[tuple[int, int, float]] = []

    def begin(self, number: int, run: Run) -> None:
        """A job that was just started."""
        self._running[number] = run

    def result(self, number: int) -> Reply:
        """How a job stands; ESRCH for one that never was or is forgotten."""
        if number in self._running:
            return self._running[number].so_far()
        if number not in self._ended:
            raise OSError(errno.ESRCH, f"no job {number}: it never was, or {_REMEMBERED} others ended since, or a reset")
        return self._ended[number]

    def is_running(self, number: int) -> bool:
        """Whether it goes on."""
        return number in self._running

    def wait(self, request_id: int, number: int, until: float) -> None:
        """Remember a request that is to be answered at a job's end or at a moment of the monotonic clock."""
        self._waiters.append((request_id, number, until))

    def end(self, number: int, reply: Reply) -> None:
        """A job ended."""
        if self._running.pop(number, None) is not None:
            self._ended[number] = reply
            for forgotten in list(self._ended)[:-_REMEMBERED]:
                del self._ended[forgotten]

    def forget(self) -> None:
        """Whatever ended belongs to an episode that is over."""
        self._ended.clear()

    def due(self) -> list[tuple[int, Reply]]:
        """Requests to answer now, with their answers."""
        now = time.monotonic()
        due = [(request, number) for request, number, until in self._waiters if until <= now or number not in self._running]
        self._waiters = [waiter for waiter in self._waiters if waiter[2] > now and waiter[1] in self._running]
        return [(request, self.result(number)) for request, number in due]

    @property
    def are_waited_for(self) -> bool:
        """Whether a request is still to be answered."""
        return bool(self._waiters)

    @property
    def next_deadline(self) -> float:
        """When a waiter has to be answered at the latest."""
        return min((until for _, _, until in self._waiters), default=float("inf"))
