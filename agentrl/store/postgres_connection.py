"""Pooled psycopg connections, and what a broken one or an error of the schema's functions means.

Every store method is one statement in autocommit mode (one round trip) unless it says otherwise. Statements are prepared once a
connection and parameters travel in binary; Python ints are always int8, so that a statement has one parameter signature.

- Errors raised by our SQL functions (SQLSTATE class AR) become the exceptions of `agentrl.errors`.
- A connection that fails before the store was ever reached is `NotReadyError`; one that breaks later is `UnknownOutcome`.
- The password of the URL is in no message.
- With ``pgbouncer=true`` in the URL nothing outlives a transaction: no statement is prepared by name, and nobody listens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import sqlalchemy
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGresult
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper
from sqlalchemy.engine import URL, make_url

from agentrl.errors import (
    BadValue,
    CommitRefused,
    Fenced,
    IllegalMove,
    IncompleteTrajectory,
    NotReadyError,
    SegmentConflict,
    SegmentGap,
    UnknownOutcome,
    UnknownVersion,
    UsageError,
)
from agentrl.store.arrays import register_arrays
from agentrl.store.contract import Change, Subscribed
from agentrl.store.schema_setup import ensure_schema
from agentrl.store.server_refusals import explain_connect_failure, first_line, incomplete_schema, no_permission
from agentrl.store.wakeup import Notifier, Subscription, Unheard

_ERRORS: Mapping[str, type[Exception]] = {
    "AR001": Fenced,
    "AR002": SegmentGap,
    "AR003": SegmentConflict,
    "AR004": IncompleteTrajectory,
    "AR005": UnknownVersion,
    "AR006": BadValue,
    "AR007": IllegalMove,
    "AR008": CommitRefused,
    "AR009": UsageError,
}
_LACKING = (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction)
_REPEATABLE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_ATTEMPTS = 5
_T = TypeVar("_T")
CONNECT_TIMEOUT_S = 10


class PostgresConnection:
    """The pool, the error mapping and the ways to talk: `rows`, `row`, `transaction`, `session`."""

    def __init__(self, url: str, pool_size: int = 8) -> None:
        self._url, self.pooled = parse_url(url)
        self.masked_url = self._url.render_as_string(hide_password=True)
        self._engine = sqlalchemy.create_engine(
            self._url.set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=600,
            pool_reset_on_return=None,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "agentrl"},
        )
        sqlalchemy.event.listen(self._engine, "connect", self._prepare_connection)
        self.notifier = Notifier(self._conninfo)
        try:
            with self._borrow() as connection:
                ensure_schema(connection)
        except psycopg.errors.InsufficientPrivilege as e:
            raise NotReadyError(no_permission(self.masked_url, self._url, e)) from e
        except psycopg.OperationalError as e:
            raise NotReadyError(explain_connect_failure(self._url, str(e))) from e

    def _prepare_connection(self, connection: Any, _record: Any) -> None:
        driver = connection if isinstance(connection, psycopg.Connection) else connection.driver_connection
        driver.autocommit = True
        driver.prepared_max = 200
        if self.pooled:
            driver.prepare_threshold = None
        driver.adapters.register_dumper(int, Int8BinaryDumper)
        driver.adapters.register_dumper(str, StrBinaryDumper)
        register_arrays(driver)
        set_json_loads(_load_json, driver)
        driver.execute("set jit = off")

    @property
    def _conninfo(self) -> str:
        """For connections outside of the pool; holds the password."""
        return self._url.set(drivername="postgresql").render_as_string(hide_password=False)

    def subscribe(self, run: int, callback: Callable[[Change], None]) -> Subscribed:
        return Unheard() if self.pooled else Subscription(self._conninfo, run, callback)

    def close(self) -> None:
        self.notifier.close()
        self._engine.dispose()

    @contextmanager
    def _borrow(self) -> Iterator[psycopg.Connection]:
        """A pooled connection; a broken one is thrown away with all idle ones, which broke for the same reason."""
        try:
            pooled = self._engine.raw_connection()
        except sqlalchemy.exc.OperationalError as e:
            raise e.orig if isinstance(e.orig, psycopg.OperationalError) else e from e
        connection = pooled.driver_connection
        assert isinstance(connection, psycopg.Connection)
        try:
            yield connection
        finally:
            if connection.closed or connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                pooled.invalidate()
                self._engine.dispose()
            else:
                pooled.close()

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """A connection in autocommit mode, for the few statements that can't be part of a transaction."""
        try:
            with self._borrow() as connection:
                yield connection
        except psycopg.Error as e:
            raise self._explain(e) from e

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        """One transaction of several statements, for the few methods that need more than one."""
        with self.session() as connection, connection.transaction():
            yield connection

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one statement, which is a transaction of its own."""
        return self._execute(statement, parameters, psycopg.Cursor.fetchall)

    def result(self, statement: str, parameters: Sequence[Any] = ()) -> tuple[PGresult, Callable[[int], tuple[Any, ...]]]:
        """The same in binary and not decoded, for large rows of which little is read; and what decodes a row by its number."""
        result = self._execute(statement, parameters, lambda cursor: cursor.pgresult)
        assert result is not None
        decoder = Transformer()
        decoder.set_pgresult(result)
        return result, lambda row: decoder.load_row(row, tuple) or ()

    def _execute(self, statement: str, parameters: Sequence[Any], take: Callable[[psycopg.Cursor[Any]], _T]) -> _T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._borrow() as connection:
                    cursor = connection.cursor(binary=True)
                    cursor.execute(statement, parameters, prepare=True)
                    return take(cursor)
            except _REPEATABLE as e:
                # The server rolled the transaction back: nothing happened, so the same call may simply be made again.
                if attempt == _ATTEMPTS:
                    raise self._explain(e) from e
            except psycopg.Error as e:
                raise self._explain(e) from e
        raise AssertionError("unreachable")

    def row(self, statement: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The only row of one statement."""
        (only,) = self.rows(statement, parameters)
        return only

    def _explain(self, error: psycopg.Error) -> Exception:
        diagnostic = error.diag
        ours = _ERRORS.get(error.sqlstate or "")
        if ours is not None:
            message = diagnostic.message_primary or ""
            return ours(message, int(diagnostic.message_detail)) if diagnostic.message_detail else ours(message)
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return UsageError(no_permission(self.masked_url, self._url, first_line(error)))
        if isinstance(error, _LACKING):
            return NotReadyError(incomplete_schema(self.masked_url, first_line(error)))
        if isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate[:2] in ("08", "57")):
            return UnknownOutcome(
                f"the connection to {self.masked_url} broke before the answer ({first_line(error)}): make the same call again"
            )
        return error


def parse_url(text: str) -> tuple[URL, bool]:
    """The URL of the server, and whether a PgBouncer in transaction mode answers there (``pgbouncer=true``)."""
    try:
        parsed = make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError) as e:
        # The text may hold a password, so it is not repeated.
        raise UsageError("The database URL can't be read; it should look like postgresql://user:password@host:5432/name") from e
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise UsageError(f"The store needs a postgresql:// URL, got {parsed.render_as_string(hide_password=True)}")
    pooled = parsed.query.get("pgbouncer", "false")
    if pooled not in ("true", "false"):
        raise UsageError(f"pgbouncer={pooled} in the database URL: use true or false")
    return parsed.difference_update_query(["pgbouncer"]), pooled == "true"


def _load_json(text: str | bytes) -> Any:
    return [] if text == b"[]" else json.loads(text)  # a turn without tool calls has two of them
