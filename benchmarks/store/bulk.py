"""Many trajectories without writing each: rows of real ones, written through the store, are copied inside the server.

The copies differ from their template in key, step and time only. Keys sort by time, as the store's own do: with random ones
each write would touch other pages of the indexes. Column names are read from the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from agentrl.store.postgres import PostgresStore
from benchmarks.store.payload import trajectory
from benchmarks.store.world import Run, end

TOKENS, TURNS = 1024, 4
"""Size of the copied trajectories: small, so that the queue and not the payload is what is measured."""
STEP = 64

_KEYS = {"trajectory": "id", "segment": "trajectory", "reward": "trajectory", "event": "trajectory", "ready": "item",
         "consumed": "trajectory"}  # fmt: skip


class Templates:
    """One consumed and one ready trajectory of a run, kept in a schema of their own, and the copies made of them."""

    def __init__(self, store: PostgresStore, run: Run, schema: str = "template") -> None:
        self.store, self.run, self.schema = store, run, schema
        for seed in range(STEP + 1):
            (episode,) = run.open(1)
            segments = trajectory(seed, TOKENS, TURNS, run.version)
            for s in segments:
                store.write_segment(episode, s)
            store.complete(episode, end(TURNS))
        run.commit(run.claim(STEP))
        with store.transaction() as connection:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
            for kind, key in (("consumed", "trajectory"), ("ready", "item")):
                self._keep(connection, kind, key)
            step = sql.SQL("create table {} as select * from agentrl.step where run = {}")
            connection.execute(step.format(sql.Identifier(schema, "step"), run.id))

    def consume(self, n: int) -> None:
        """Add ``n`` consumed trajectories, a multiple of 64, and their steps."""
        first = self.run.step + 1
        step = f"{first} + (b.n - 1) / {STEP}"
        with self.store.transaction() as connection:
            _keys(connection, n)
            steps = {"step": step, "updates": step, "batch_hash": f"'copy ' || {step}"}
            _copy(connection, "step", f"{self.schema}.step", "b.n % 64 = 1", steps)
            self._copies(connection, "consumed", ("trajectory", "segment", "reward", "event"), {})
            self._copies(connection, "consumed", ("consumed",), {"item": "b.id", "step": step})
        self.run.step += n // STEP

    def make_ready(self, n: int) -> None:
        """Add ``n`` trajectories that can be claimed."""
        ready = {"trajectories": "array[b.id]", "at": "clock_timestamp()"}
        with self.store.transaction() as connection:
            _keys(connection, n)
            self._copies(connection, "ready", ("trajectory", "segment", "reward", "event"), {})
            self._copies(connection, "ready", ("ready",), ready)

    def _keep(self, connection: psycopg.Connection, kind: str, key_column: str) -> None:
        """Keep the rows of the newest trajectory in one place as templates."""
        newest = sql.SQL("select {} from {} where run = {} order by at desc limit 1").format(
            sql.Identifier(key_column), sql.Identifier("agentrl", kind), self.run.id
        )
        found = connection.execute(newest).fetchone()
        assert found is not None
        for table, key in _KEYS.items():
            statement = sql.SQL("create table {} as select * from {} where {} = {}").format(
                sql.Identifier(self.schema, f"{kind}_{table}"), sql.Identifier("agentrl", table), sql.Identifier(key), found[0]
            )
            connection.execute(statement)

    def _copies(self, connection: psycopg.Connection, kind: str, tables: tuple[str, ...], changes: Mapping[str, str]) -> None:
        for table in tables:
            _copy(connection, table, f"{self.schema}.{kind}_{table}", "true", {_KEYS[table]: "b.id", **changes})


def settle(url: str) -> None:
    """What autovacuum would have done by the time that so many rows have come."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
        connection.execute("checkpoint")


def _keys(connection: psycopg.Connection, n: int) -> None:
    connection.execute("create temp table bench_key (n bigint, id uuid) on commit drop")
    connection.execute("insert into bench_key select n, agentrl.new_id_v1() from generate_series(1, %s) n", (n,))


def _copy(connection: psycopg.Connection, table: str, source: str, condition: str, changes: Mapping[str, str]) -> None:
    """Insert the rows of ``source`` into a table of the store once a key, with some columns changed."""
    found = connection.execute(
        "select quote_ident(column_name) from information_schema.columns"
        " where table_schema = 'agentrl' and table_name = %s and is_identity = 'NO'",
        (table,),
    ).fetchall()
    columns = [name for (name,) in found]
    values = ", ".join(changes.get(c, f"t.{c}") for c in columns)
    connection.execute(
        f"insert into agentrl.{table} ({', '.join(columns)}) select {values} from bench_key b, {source} t where {condition}"
        " order by b.n".encode()
    )
