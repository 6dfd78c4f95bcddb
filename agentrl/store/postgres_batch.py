"""Group commit: calls that arrive while another is being committed share the next transaction.

A turn's write is small and its commit is not: one transaction for the turns of many episodes costs a third of the CPU and one
flush of the log. Invariants:

- A call returns only after its own effect is committed, or raises its own error.
- An error of one call touches no other: the shared transaction is rolled back and each call is made alone.
- A call that meets nobody is a transaction of its own. Only when the last one had company does it wait a millisecond for more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from threading import Lock
from typing import Any

import psycopg

from agentrl.errors import AgentRLError, UnknownOutcome
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.store.sql_functions import Function, one_statement

MAX_SHARED = 64
_COMPANY_S = 0.001


def _taken_lock() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a function that returns one value; ``wake`` is released when it is done or has to lead."""

    function: Function
    parameters: Sequence[Any]
    wake: Lock = field(default_factory=_taken_lock)
    done: bool = False
    value: Any = None
    error: BaseException | None = None


class PostgresBatch(PostgresConnection):
    """Adds `shared` to the connection."""

    def __init__(self, url: str, pool_size: int = 8) -> None:
        super().__init__(url, pool_size)
        self._queue = Lock()
        self._waiting: list[_Call] = []
        self._led = False
        self._had_company = False

    def shared(self, function: Function, parameters: Sequence[Any]) -> Any:
        """The value of a call that may share its transaction with others; only for calls that lock rows of one episode."""
        call = _Call(function, parameters)
        with self._queue:
            self._waiting.append(call)
            leads, self._led = not self._led, True
        if not leads:
            call.wake.acquire()
        if not call.done:
            self._lead()
        if call.error is not None:
            raise call.error
        return call.value

    def _lead(self) -> None:
        """Make the calls that wait, then pass the lead to whoever came meanwhile."""
        if self._had_company:
            time.sleep(_COMPANY_S)
        with self._queue:
            batch = self._waiting[:MAX_SHARED]
            del self._waiting[:MAX_SHARED]
        self._had_company = len(batch) > 1
        try:
            self._make(sorted(batch, key=_statement))
        finally:
            with self._queue:
                heir = self._waiting[0] if self._waiting else None
                self._led = heir is not None
            for call in batch:
                if not call.done:  # something other than the database failed in this thread
                    call.error = UnknownOutcome("the shared transaction was interrupted: make the same call again")
                    call.done = True
                call.wake.release()
            if heir is not None:
                heir.wake.release()

    def _make(self, batch: Sequence[_Call]) -> None:
        if len(batch) > 1 and self._make_together(batch):
            return
        for call in batch:
            try:
                call.value = self.called(call.function, call.parameters)
            except (AgentRLError, psycopg.Error) as e:
                call.error = e
            call.done = True

    def _make_together(self, batch: Sequence[_Call]) -> bool:
        """False when nothing happened and each call has to be made alone."""
        try:
            values = self.together([(c.function, c.parameters) for c in batch])
        except UnknownOutcome as e:
            for call in batch:
                call.error, call.done = UnknownOutcome(*e.args), True
            return True
        except (AgentRLError, psycopg.Error):
            return False
        for call, value in zip(batch, values, strict=True):
            call.value, call.done = value, True
        return True

    def called(self, function: Function, parameters: Sequence[Any]) -> Any:
        """The value of one call, which is a transaction of its own."""
        value = self.result(function.call, function.call.encoded(parameters)).get_value(0, 0)
        assert value is not None
        return function.decode(value)

    def together(self, calls: Sequence[tuple[Function, Sequence[Any]]]) -> list[Any]:
        """The values of calls made in one transaction, in their order; one statement where that is possible."""
        groups = [(f, [parameters for _, parameters in g]) for f, g in groupby(calls, lambda call: call[0])]
        if (statement := one_statement(groups)) is not None:
            (row,) = self.decoded(*statement)
            return [value for values in row for value in values]
        with self.transaction() as connection:
            cursor = connection.cursor(binary=True)
            values = []
            for function, group in groups:
                cursor.executemany(function.one.encode(), [function.values(call) for call in group], returning=True)
                values += [row[0] for result in cursor.results() for row in result]
        return values


def _statement(call: _Call) -> str:
    return call.function.one
