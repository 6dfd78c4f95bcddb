"""Statements run straight through libpq, prepared once a connection: the driver's cursor costs more than the rest of a call.

A statement is run while nobody else uses the connection; the thread waits for the answer, whatever signals come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from agentrl.store.sql_functions import Statement

_numbers = itertools.count()


class PreparedStatements:
    """Which statements each connection has prepared."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[psycopg.Connection, dict[Statement, bytes]] = WeakKeyDictionary()

    def run(self, connection: psycopg.Connection, statement: Statement, values: Sequence[bytes | None]) -> PGresult:
        """The result of a statement that is a transaction of its own."""
        try:
            return self._run(connection, statement, values)
        except psycopg.errors.InvalidSqlStatementName:
            # The driver forgets everything that is prepared after it has rolled back; nothing happened.
            self._names.pop(connection, None)
            return self._run(connection, statement, values)

    def _run(self, connection: psycopg.Connection, statement: Statement, values: Sequence[bytes | None]) -> PGresult:
        names = self._names.setdefault(connection, {})
        name = names.get(statement)
        if name is None:
            name = b"agentrl_%d" % next(_numbers)
            _checked(connection, connection.pgconn.prepare(name, statement.text, statement.oids))
            names[statement] = name
        return _checked(connection, connection.pgconn.exec_prepared(name, values, statement.formats, 1))  # type: ignore[arg-type]


def run_once(connection: psycopg.Connection, statement: Statement, values: Sequence[bytes | None]) -> PGresult:
    """The result of a statement that the connection does not keep, also within a transaction."""
    result = connection.pgconn.exec_params(statement.text, values, statement.oids, statement.formats, 1)
    return _checked(connection, result)


def _checked(connection: psycopg.Connection, result: PGresult) -> PGresult:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    if connection.pgconn.status != ConnStatus.OK:
        raise psycopg.OperationalError(result.get_error_message())
    raise error_from_result(result)


def decoder(result: PGresult) -> Callable[[int], tuple[Any, ...]]:
    """What decodes a row of a result by its number."""
    transformer = Transformer()
    transformer.set_pgresult(result)
    return lambda row: transformer.load_row(row, tuple) or ()
