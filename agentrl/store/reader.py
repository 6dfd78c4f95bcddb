"""Reading as people do it: a store that can change nothing, and answers that end at a time and a number of rows.

- Whatever is asked runs in a READ ONLY transaction of its own with a time limit of its own, so that neither a slow statement
  nor one left open holds the writers up.
- It runs as the role `agentrl_reader` where the user may take that role, and read-only all the same where not.
- The two limits never act silently: an answer says that it was cut, a stopped statement says which limit stopped it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import psycopg
from psycopg.pq.abc import PGresult

from agentrl.errors import UsageError
from agentrl.store.codec import clean_text
from agentrl.store.contract import QueryResult
from agentrl.store.postgres_reading import PostgresReading
from agentrl.store.postgres_runs import PostgresRuns
from agentrl.store.prepared import run_once
from agentrl.store.saved_queries import bind, saved_query
from agentrl.store.sql_functions import Statement

ROLE = "agentrl_reader"
TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 60
LIMIT = 10_000

# A user may take a role by being its member; newer servers have a right of its own for that.
_ROLE_IS_USABLE = """
  select has_schema_privilege(oid, 'agentrl', 'usage') and has_table_privilege(oid, 'agentrl.run', 'select')
     and pg_has_role(oid, case when current_setting('server_version_num')::int < 160000 then 'member' else 'set' end)
  from pg_roles where rolname = %s
"""
_SETTINGS = """
  select set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true),
         set_config('search_path', 'agentrl, public', true)
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, and the row limit when there would have been more."""

    result: QueryResult
    cut_at: int | None = None


class Reader(PostgresRuns, PostgresReading):
    """The reading half of a store, over one connection unless several threads ask. It creates the schema where it is absent, as
    every store does."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, connections: int = 1) -> None:
        super().__init__(url, pool_size=connections)
        self.timeout_s = timeout_s
        usable = super().rows(_ROLE_IS_USABLE, (ROLE,))
        self.role = ROLE if usable == [(True,)] else None

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        with super().transaction() as connection:
            connection.execute("set transaction read only")
            connection.execute(_SETTINGS, (f"{max(1, round(self.timeout_s * 1000))}ms", f"{IDLE_TIMEOUT_S}s"))
            if self.role is not None:
                connection.execute(f"set local role {self.role}".encode())
            yield connection

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.transaction() as connection:
            return connection.cursor(binary=True).execute(statement.encode(), parameters).fetchall()

    def result(self, statement: Statement, values: Sequence[bytes | None]) -> PGresult:
        with self.transaction() as connection:
            return run_once(connection, statement, values)

    def ask(self, statement: str, limit: int = LIMIT) -> Answer:
        """The first ``limit`` rows of one SQL statement as a person wrote it; `UsageError` says what is wrong with it."""
        if clean_text(statement) != statement:
            raise UsageError(
                "The statement holds bytes that are no UTF-8 text; E'\\xff'::bytea or decode() writes such values."
            )
        with self.transaction() as connection:
            try:
                # Raw: no character of the statement is a placeholder. Parameters, though none, allow one statement only.
                return _first(psycopg.RawCursor(connection), statement, (), limit)
            except psycopg.errors.QueryCanceled:
                raise
            except psycopg.Error as e:
                if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    connection.close()  # rows come in a way that nobody reads, as those of COPY do
                elif connection.closed:
                    raise
                raise UsageError(_complaint(e, statement)) from e

    def saved(self, name: str, limit: int | None = None, **parameters: Any) -> Answer:
        """A saved query; ``limit`` counts rows, by default as many as the query itself says."""
        query = saved_query(name)
        most = limit or query.limit or LIMIT
        if "limit" in query.parameters:
            parameters["limit"] = most + 1
        statement, values = bind(query, parameters)
        try:
            with self.transaction() as connection:
                return _first(connection.cursor(), statement, values, most)
        except psycopg.DataError as e:
            raise UsageError(f"Query {name!r} can't use a parameter: {e.diag.message_primary}") from e

    def cancel(self) -> None:
        """End the statements that run now; whoever waits for one gets `UsageError`."""
        self._pool.cancel()

    def _explain(self, error: psycopg.Error) -> Exception:
        if isinstance(error, psycopg.errors.QueryCanceled):
            return UsageError(
                f"The statement was stopped after {self.timeout_s:g} s, the time limit. "
                "Ask for less (one run, a LIMIT), or for more time with --timeout SECONDS."
            )
        return super()._explain(error)


def _first(cursor: psycopg.Cursor[Any], statement: str, values: Any, limit: int) -> Answer:
    with closing(cast(Generator[Any, None, None], cursor.stream(statement.encode(), values))) as stream:
        rows = list(islice(stream, limit + 1))
    if rows:
        columns = [c.name for c in cursor.description or ()]
    else:
        # A stream without rows has no description, but the server still knows the statement, which has no name.
        described = cursor.connection.pgconn.describe_prepared(b"")
        columns = [(described.fname(i) or b"").decode() for i in range(described.nfields)]
    return Answer(QueryResult(columns, rows[:limit]), limit if len(rows) > limit else None)


def _complaint(error: psycopg.Error, statement: str) -> str:
    """One paragraph for a statement that the server refused: what, where, and the way out."""
    said = " ".join((error.diag.message_primary or str(error)).split())
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction | psycopg.errors.InsufficientPrivilege):
        return f"This command only reads, and the statement would do more ({said}). `agentrl db shell --write` lets you."
    if "multiple commands" in said:
        return "This command takes one statement; `agentrl db shell` takes as many as you like."
    if error.sqlstate is None:
        return "The statement gives no rows; this command is for statements that do, such as SELECT."
    where = ""
    if error.diag.statement_position:
        rest = statement[int(error.diag.statement_position) - 1 :].split()
        where = f" at '{' '.join(rest[:3])}'" if rest else " at its end"
    hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
    names = " docs/reference/schema.md lists tables, views and columns." if error.sqlstate.startswith("42") else ""
    return f"The statement can't be run: {said}{where}.{hint}{names}"
