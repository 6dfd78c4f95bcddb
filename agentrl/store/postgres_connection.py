"""Pooled psycopg connections, and what a broken one or an error of the schema's functions means.

Every store method is one statement in autocommit mode (one round trip) unless it says otherwise. Statements are prepared once a
connection and parameters travel in binary; Python ints are always int8, so that a statement has one parameter signature.

- Errors raised by our SQL functions (SQLSTATE class AR) become the exceptions of `agentrl.errors`.
- A connection that fails before the store was ever reached is `NotReadyError`; one that breaks later is `UnknownOutcome`.
- The password of the URL is in no message.
- A server that vanishes without closing its connections is noticed within half a minute, unless the URL says otherwise.
- With ``pgbouncer=true`` in the URL nothing outlives a transaction: no statement is prepared by name, and nobody listens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
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
from agentrl.store.connection_pool import ConnectionPool
from agentrl.store.contract import Change, Subscribed
from agentrl.store.prepared import PreparedStatements, decoder, run_once
from agentrl.store.schema_setup import ensure_schema
from agentrl.store.server_refusals import explain_connect_failure, first_line, incomplete_schema, no_permission
from agentrl.store.sql_functions import Statement
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
_NOTICED_IN_30_S = {
    "keepalives": "1",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""How soon a server counts as gone that vanished without a word; the defaults of the system wait for minutes to hours."""


class PostgresConnection:
    """The pool, the error mapping and the ways to talk: `rows`, `row`, `transaction`, `session`."""

    def __init__(self, url: str, pool_size: int = 8) -> None:
        self._url, self.pooled = parse_url(url)
        self.masked_url = self._url.render_as_string(hide_password=True)
        self._pool = ConnectionPool(self._connect, pool_size)
        self._prepared = PreparedStatements()
        self.notifier = Notifier(self._conninfo)
        try:
            with self._pool.borrow() as connection:
                ensure_schema(connection)
        except psycopg.errors.InsufficientPrivilege as e:
            raise NotReadyError(no_permission(self.masked_url, self._url, e)) from e
        except psycopg.OperationalError as e:
            raise NotReadyError(explain_connect_failure(self._url, str(e))) from e

    def _connect(self) -> psycopg.Connection:
        driver = psycopg.connect(
            self._conninfo,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="agentrl",
            client_encoding="utf8",
        )
        driver.prepared_max = 200
        if self.pooled:
            driver.prepare_threshold = None
        driver.adapters.register_dumper(int, Int8BinaryDumper)
        driver.adapters.register_dumper(str, StrBinaryDumper)
        set_json_loads(_load_json, driver)
        driver.execute("set jit = off")
        return driver

    @property
    def _conninfo(self) -> str:
        """For all connections, also outside of the pool; holds the password."""
        return with_timeouts(self._url).set(drivername="postgresql").render_as_string(hide_password=False)

    def subscribe(self, run: int, callback: Callable[[Change], None]) -> Subscribed:
        return Unheard() if self.pooled else Subscription(self._conninfo, run, callback)

    def close(self) -> None:
        self.notifier.close()
        self._pool.close()

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """A connection in autocommit mode, for the few statements that can't be part of a transaction."""
        try:
            with self._pool.borrow() as connection:
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
        return self._attempts(
            lambda connection: connection.cursor(binary=True).execute(statement.encode(), parameters, prepare=True).fetchall()
        )

    def result(self, statement: Statement, values: Sequence[bytes | None]) -> PGresult:
        """The same for a statement whose parameters are encoded, in binary and not decoded: little is read of large rows."""
        run = run_once if self.pooled else self._prepared.run
        return self._attempts(lambda connection: run(connection, statement, values))

    def decoded(self, statement: Statement, values: Sequence[bytes | None]) -> list[tuple[Any, ...]]:
        """The same, decoded."""
        result = self.result(statement, values)
        return list(map(decoder(result), range(result.ntuples)))

    def _attempts(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        """What ``work`` gives, which is a transaction of its own; made again where the server rolled it back."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._pool.borrow() as connection:
                    return work(connection)
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
        # A failed write to a connection whose end is not read yet has no code and comes as the base class.
        broken = isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError
        if broken and (error.sqlstate is None or error.sqlstate[:2] in ("08", "57")):
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
    url = parsed.difference_update_query(["pgbouncer"])
    try:
        conninfo_to_dict(url.set(drivername="postgresql").render_as_string(hide_password=False))
    except psycopg.ProgrammingError as e:
        raise UsageError(f"The database URL can't be used: {first_line(e)}") from e
    return url, pooled == "true"


def with_timeouts(url: URL) -> URL:
    """``url`` with limits after which a silent server counts as gone, where it names none of its own."""
    return url.update_query_dict({name: value for name, value in _NOTICED_IN_30_S.items() if name not in url.query})


def _load_json(text: str | bytes) -> Any:
    return [] if text == b"[]" else json.loads(text)  # a turn without tool calls has two of them
