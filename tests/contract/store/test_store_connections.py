"""The pool and the statements that bypass the driver's cursor, by what they promise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from store_bench import PostgresWorld

from agentrl.errors import NotReadyError, StoreError, UnknownOutcome
from agentrl.store import connection_pool
from agentrl.store.connection_pool import ConnectionPool
from agentrl.store.postgres import PostgresStore
from agentrl.store.sql_functions import Statement

ECHO = Statement("select $1, $2, $3", "text", "bigint", "bytea[]")


@pytest.fixture
def store(embedded_world: PostgresWorld) -> Iterator[PostgresStore]:
    made = PostgresStore(embedded_world.url, pool_size=2)
    yield made
    made.close()


def test_bounded__who_finds_none_free_waits(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "LONGEST_WAIT_S", 0.01)
    with store.session() as one, store.session() as two:
        assert one is not two
        with pytest.raises(NotReadyError, match="all 2 connections of this process were busy"):
            store.rows("select 1")
    with store.session() as again:
        assert again is one, "the one returned last"


def test_bounded__many_threads_over_few_connections(embedded_world: PostgresWorld) -> None:
    made: list[psycopg.Connection] = []

    def connect() -> psycopg.Connection:
        made.append(psycopg.connect(embedded_world.url, autocommit=True))
        return made[-1]

    pool = ConnectionPool(connect, 3)
    meet = threading.Barrier(3)

    def ask(n: int) -> int:
        with pool.borrow() as connection:
            if n < 3:
                meet.wait(10)
            row = connection.execute("select %s::int", (n,)).fetchone()
        assert row is not None
        return int(row[0])

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(ask, range(60))) == list(range(60))
    assert len(made) == 3
    pool.close()
    assert all(connection.closed for connection in made)


def test_broken_together__idle_ones_go_with_the_one_that_broke(store: PostgresStore) -> None:
    with store.session() as one, store.session() as two:
        backends = [one.info.backend_pid, two.info.backend_pid]
    with psycopg.connect(store._url.set(drivername="postgresql").render_as_string(hide_password=False)) as other:
        for backend in backends:
            other.execute("select pg_terminate_backend(%s, 5000)", (backend,))
    with pytest.raises(UnknownOutcome, match="make the same call again"):
        store.result(ECHO, ECHO.encoded(("a", 1, None)))
    assert store.decoded(ECHO, ECHO.encoded(("a", 1, None))) == [("a", 1, None)]


def test_error_of_the_client_library_itself__unknown_outcome(store: PostgresStore) -> None:
    def broken(connection: psycopg.Connection) -> None:
        raise error_from_result(connection.pgconn.make_empty_result(ExecStatus.FATAL_ERROR))

    with pytest.raises(UnknownOutcome, match="make the same call again"):
        store._attempts(broken)


def test_prepared_statement__is_prepared_again_when_the_driver_forgot_all(store: PostgresStore) -> None:
    values = ("ü", -(2**63), [b"\0", None, b"x" * 300])
    with store.session() as connection:
        assert store.decoded(ECHO, ECHO.encoded(values)) == [values]
        connection.execute("deallocate all")
    assert store.decoded(ECHO, ECHO.encoded(values)) == [values]
    with pytest.raises(psycopg.errors.CharacterNotInRepertoire):
        store.decoded(ECHO, ECHO.encoded(("\0", 1, None)))
    assert store.decoded(ECHO, ECHO.encoded((None, None, None))) == [(None, None, None)]


def test_prepared_statement__errors_of_the_schemas_functions_are_typed(store: PostgresStore) -> None:
    fail = Statement("select agentrl.fail_v1($1, $2)", "text", "text")
    with pytest.raises(StoreError, match="no longer open"):
        store.result(fail, fail.encoded(("AR001", "it is no longer open")))
