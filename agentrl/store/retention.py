"""Removing the trajectories of old policy versions, a partition at a time.

- What a run, an importer, a retry, an evaluation or a resume still needs stays, and the reason is given.
- First the record (`agentrl.retired`), then the tables: conservation holds before, between and after. Each step may be the last
  one before a crash; the next call finishes it.
- Nothing waits for a user's open transaction longer than `LOCK_TIMEOUT_S`, and no writer waits for us.
- One call at a time works on a store.
- The ledger stays: consumed, dropped, step, reward, evaluated and event keep their rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

import psycopg
from psycopg import sql

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.postgres_connection import PostgresConnection

LOCK_TIMEOUT_S = 5.0
PARENTS = ("trajectory", "segment", "trained")
"""In the order in which they are detached: without its first row a trajectory is gone for every reader."""

_PENDING = """
  select p.relname::text, c.relname::text from pg_inherits i
  join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
  where i.inhdetachpending and p.relnamespace = 'agentrl'::regnamespace and p.relname = any (%s)
"""
_BLOCKERS = """
  select a.pid, coalesce(a.usename::text, '?'), a.application_name, extract(epoch from now() - a.xact_start)::float8
  from pg_stat_activity a
  where a.pid <> pg_backend_pid() and a.datname = current_database() and a.xact_start is not null
    and exists (select 1 from pg_locks l join pg_class c on c.oid = l.relation
                where l.pid = a.pid and l.granted and c.relnamespace = 'agentrl'::regnamespace)
  order by a.xact_start limit 1
"""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Start versions ``low`` to ``high - 1`` of a run, whose rows are removed together or not at all."""

    low: int
    high: int
    created: int
    """Training trajectories that started on them."""
    evaluated: int
    """Evaluation trajectories that started on them."""
    bytes: int
    needed: str | None
    """Who still needs them; None: nobody."""
    retired: bool
    """Recorded as removed by an earlier call, which left tables behind."""


@dataclass(frozen=True, slots=True)
class Retained:
    """What a call of `retain` did."""

    removed: list[Bucket]
    kept: list[Bucket]
    requests: int
    """Rows of old open requests that were forgotten."""


def retention_plan(store: PostgresConnection, run: int, keep_versions: int) -> list[Bucket]:
    """The buckets older than the newest ``keep_versions`` published versions, oldest first; changes nothing."""
    if keep_versions < 1:
        raise UsageError(
            f"--keep-versions must be at least 1, got {keep_versions}: running episodes start on the newest version."
        )
    return [Bucket(*row) for row in store.rows("select * from agentrl.retention_v1(%s, %s)", (run, keep_versions))]


def retain(store: PostgresConnection, run: int, keep_versions: int) -> Retained:
    """Remove what `retention_plan` says; `NotReadyError` when an open transaction is in the way, to be called again later."""
    if store.pooled:
        raise UsageError("Retention sets limits for its session: run it with a URL that leads past PgBouncer.")
    with _alone(store):
        return _retain(store, run, keep_versions)


@contextmanager
def _alone(store: PostgresConnection) -> Iterator[None]:
    """One call at a time: of two, the one would detach and drop under the other's feet."""
    key = "hashtext('agentrl.retain')"
    with store.session() as connection:
        if connection.execute(f"select pg_try_advisory_lock({key})".encode()).fetchone() != (True,):
            raise NotReadyError("Another `agentrl db retain` is at work on this store. Run the same command again later.")
        try:
            yield
        finally:
            if not connection.closed:
                connection.execute(f"select pg_advisory_unlock({key})".encode())


def _retain(store: PostgresConnection, run: int, keep_versions: int) -> Retained:
    removed, kept = [], []
    _finish_detaches(store)
    for bucket in retention_plan(store, run, keep_versions):
        needed = bucket.needed or _retire(store, run, bucket, keep_versions)
        if needed is not None:
            kept.append(replace(bucket, needed=needed))
            continue
        _remove_tables(store, run, bucket)
        removed.append(bucket)
    (requests,) = store.row("select agentrl.prune_requests_v1(%s)", (run,))
    return Retained(removed, kept, requests)


def removed_by_retention(store: PostgresConnection, trajectory: UUID) -> str | None:
    """One sentence about a trajectory that retention removed; None when it did not."""
    found = store.rows(
        "select r.name, q.low, q.high - 1, q.at from agentrl.removed_v1(%s) q join agentrl.run r on r.id = q.run",
        (trajectory,),
    )
    if not found:
        return None
    name, low, last, at = found[0]
    when = f"{at:%Y-%m-%d %H:%M}"
    return f"Trajectory {trajectory} of run {name} was removed by retention at {when} (start versions {low} to {last})."


def _retire(store: PostgresConnection, run: int, bucket: Bucket, keep_versions: int) -> str | None:
    """Record a bucket as removed unless somebody came to need it meanwhile; then who."""
    if bucket.retired:
        return None
    give_up = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            with store.transaction() as connection:
                connection.execute("select set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_S:g}s",))
                found = connection.execute("select agentrl.retire_v1(%s, %s, %s)", (run, bucket.low, keep_versions)).fetchone()
            assert found is not None
            needed: str | None = found[0]
            return needed
        except psycopg.errors.LockNotAvailable as e:
            if time.monotonic() < give_up:
                time.sleep(0.05)
                continue
            raise NotReadyError(
                f"A trainer start, import or export of the run is at work: versions {bucket.low} to {bucket.high - 1} stay "
                "for now. Run the same command again later."
            ) from e


def _finish_detaches(store: PostgresConnection) -> None:
    """A parent has room for one unfinished detach, of whichever run: it is finished before the next one begins."""
    for parent, part in store.rows(_PENDING, (list(PARENTS),)):
        _alter(store, "alter table agentrl.{} detach partition agentrl.{} finalize", parent, part)


def _remove_tables(store: PostgresConnection, run: int, bucket: Bucket) -> None:
    states = {
        parent: (part, state)
        for parent, part, state in store.rows(
            "select parent, part, state from agentrl.bucket_tables_v1(%s) where low = %s", (run, bucket.low)
        )
    }
    for parent in PARENTS:
        part, state = states.get(parent, ("", "gone"))
        if state == "attached":
            _alter(store, "alter table agentrl.{} detach partition agentrl.{} concurrently", parent, part)
        elif state == "pending":
            _alter(store, "alter table agentrl.{} detach partition agentrl.{} finalize", parent, part)
    for part, _ in states.values():
        _alter(store, "drop table agentrl.{}", part)


def _alter(store: PostgresConnection, statement: str, *tables: str) -> None:
    """One statement outside of a transaction that gives up when it has to wait for somebody."""
    composed = sql.SQL(statement).format(*map(sql.Identifier, tables))
    try:
        with store.session() as connection:
            connection.execute(sql.SQL("set lock_timeout = {}").format(sql.Literal(f"{LOCK_TIMEOUT_S:g}s")))
            try:
                connection.execute(composed)
            finally:
                if not connection.closed:
                    connection.execute("reset lock_timeout")
    except psycopg.errors.LockNotAvailable as e:
        raise NotReadyError(_in_the_way(store, tables[-1])) from e


def _in_the_way(store: PostgresConnection, part: str) -> str:
    found = store.rows(_BLOCKERS)
    if not found:
        return f"Removing table {part} had to wait for another transaction. Run the same command again; it goes on from here."
    pid, user, application, seconds = found[0]
    return (
        f"Removing table {part} waits for an open transaction: process {pid} of user {user} ({application or 'unnamed'}), open "
        f"for {seconds:.0f} s. Writers go on. End it (select pg_terminate_backend({pid})) or wait, then run the same command "
        "again; it goes on from here."
    )
