"""A few connections that many threads share. A turn's write is so small that a general pool would be a good part of its cost.

- bounded: never more than ``size`` connections, made when they are needed; who finds none free waits.
- broken_together: a connection that broke is thrown away with all idle ones, which broke for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore

import psycopg
from psycopg.pq import TransactionStatus

from agentrl.errors import NotReadyError

LONGEST_WAIT_S = 600.0
CANCEL_S = 2.0
"""What a server may take to hear that a statement shall end."""


class ConnectionPool:
    """Connections that ``connect`` makes, at most ``size`` at a time; the one returned last goes out first."""

    def __init__(self, connect: Callable[[], psycopg.Connection], size: int) -> None:
        self._connect, self._size = connect, size
        self._free = BoundedSemaphore(size)
        self._idle: list[psycopg.Connection] = []
        self._borrowed: set[psycopg.Connection] = set()
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[psycopg.Connection]:
        """A connection that is the caller's for the length of the block, outside of any transaction."""
        if not self._free.acquire(timeout=LONGEST_WAIT_S):
            raise NotReadyError(f"all {self._size} connections of this process were busy for {LONGEST_WAIT_S:g} s")
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            self._borrowed.add(connection)
            try:
                yield connection
            finally:
                self._borrowed.discard(connection)
                self._take_back(connection)
        finally:
            self._free.release()

    def _take_back(self, connection: psycopg.Connection) -> None:
        if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            connection.close()
            self._close_idle()
            return
        self._idle.append(connection)
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return  # another thread closed the last one

    def cancel(self) -> None:
        """End the statement that runs on each borrowed connection; its borrower gets the server's error."""
        for connection in tuple(self._borrowed):
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_S)

    def close(self) -> None:
        """Close the idle ones now, and each of the others when it comes back."""
        self._closed = True
        self._close_idle()
