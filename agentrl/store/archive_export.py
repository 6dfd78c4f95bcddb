"""Writing a run to a folder: one file a table and a manifest, all of one moment.

- One snapshot of the database, streamed; memory holds a few rows.
- Retention of the run waits meanwhile, so that nothing of it goes away half-way.
- The folder appears when it is complete: until then it is called ``FOLDER.partial``.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from agentrl import __version__
from agentrl.errors import NotReadyError, UsageError
from agentrl.store.archive_files import FORMATS, open_writer, require_parquet
from agentrl.store.archive_tables import (
    ARCHIVE_TABLES,
    FORMAT_VERSION,
    ArchiveFile,
    ArchiveTable,
    Manifest,
    checksum,
    table_columns,
)
from agentrl.store.archive_values import from_wire
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.store.schema_setup import revisions_of

_MOVING = """
  select place, n from (
    select 'live' as place, count(*) as n from agentrl.live where run = %(run)s
    union all select 'grade_job', count(*) from agentrl.grade_job where run = %(run)s
    union all select 'graded', count(*) from agentrl.graded where run = %(run)s
    union all select 'lease', coalesce(sum(n_traj), 0)::bigint from agentrl.lease where run = %(run)s) x
  where n > 0
"""
_LOWS = """
  select t.low from agentrl.bucket_tables_v1(%s) t
  where t.parent = 'trajectory' and not agentrl.is_retired_v1(%s, t.low) order by t.low
"""
# What a snapshot leaves out: trajectories that have not come to rest, and evaluations that are not finished.
_UNFINISHED = "select id from agentrl.evaluation where run = {run} and finished_at is null"
_LEFT_OUT = f"""
  select trajectory from agentrl.live where run = {{run}}
  union all select trajectory from agentrl.grade_job where run = {{run}}
  union all select trajectory from agentrl.graded where run = {{run}}
  union all select unnest(trajectories) from agentrl.lease where run = {{run}}
  union all select trajectory from agentrl.evaluated where evaluation in ({_UNFINISHED})
  union all select trajectory from agentrl.dropped where evaluation in ({_UNFINISHED})
"""
# Groups that lost members by it can't be completed; attempts whose retry it left out are to be tried again.
_SNAPSHOT_COLUMNS = {
    ("grp", "state"): "case when state = 'open' then 'dropped' else state end",
    ("dropped", "retryable"): "retryable and (grp is null or grp not in (select id from agentrl.grp"
    " where run = {run} and state = 'open'))",
    ("dropped", "retried_by"): f"case when retried_by in ({_LEFT_OUT}) then null else retried_by end",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    run: str
    trajectories: int
    files: int
    bytes: int


def export_run(
    store: PostgresConnection, run: int, folder: Path, file_format: str = "jsonl", snapshot: bool = False
) -> Exported:
    """Write a run to ``folder``, which must not exist yet or be empty.

    ``snapshot``: allow a run that is at work, of which only what has come to rest is written.
    """
    if file_format not in FORMATS:
        raise UsageError(f"There is no format {file_format!r}: use {' or '.join(FORMATS)}.")
    if file_format == "parquet":
        require_parquet()
    with _folder(folder) as partial, _one_moment(store, run) as connection:
        if not snapshot:
            _refuse_moving(connection, run)
        manifest = _write(connection, run, partial, file_format, snapshot)
        manifest.write(partial)
    files = manifest.tables.values()
    return Exported(manifest.run, manifest.tables["trajectory"].rows, len(files), sum(f.bytes for f in files))


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already; name a folder that does not, or an empty one.")
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        raise UsageError(f"{partial} is left from an export that was interrupted: remove it first.")
    try:
        partial.mkdir(parents=True)
        try:
            yield partial
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as e:
        raise NotReadyError(f"The archive could not be written to {folder}: {e}") from e


@contextmanager
def _one_moment(store: PostgresConnection, run: int) -> Iterator[psycopg.Connection]:
    """A transaction that sees one moment of the run, without retention beginning or ending in it."""
    lock = "(hashtext('agentrl.retention'), %s::int)"
    store.rows("select agentrl.settle_evaluations_v1(%s)", (run,))
    with store.session() as connection:
        # Before the transaction: its snapshot must not be older than the lock.
        connection.execute(f"select pg_advisory_lock_shared{lock}".encode(), (run,))
        try:
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read, read only")
                # The indexes give the rows in order; sorting wide rows would go through the disk.
                connection.execute("set local enable_sort = off")
                yield connection
        finally:
            if not connection.closed:
                connection.execute(f"select pg_advisory_unlock_shared{lock}".encode(), (run,))


def _refuse_moving(connection: psycopg.Connection, run: int) -> None:
    moving = connection.execute(_MOVING.encode(), {"run": run}).fetchall()
    if moving:
        raise UsageError(
            f"The run is still at work ({', '.join(f'{n} {place}' for place, n in moving)}): finish or resume it first, "
            "or write what has come to rest with --snapshot."
        )


def _write(connection: psycopg.Connection, run: int, folder: Path, file_format: str, snapshot: bool) -> Manifest:
    found = connection.execute("select name from agentrl.run where id = %s", (run,)).fetchone()
    if found is None:
        raise UsageError(f"there is no run with id {run}")
    lows = [low for (low,) in connection.execute(_LOWS.encode(), (run, run)).fetchall()]
    tables = {}
    for table in ARCHIVE_TABLES:
        columns = table_columns(connection, table.name)
        path = folder / f"{table.name}.{file_format}"
        writer = open_writer(path, columns)
        rows = 0
        try:
            for query in _queries(table, columns, run, lows, snapshot):
                # Closed at once when a write fails: the connection is free again only then.
                with closing(_stream(connection, query, columns)) as stream:
                    for row, size in stream:
                        writer.write(row, size)
                        rows += 1
        finally:
            writer.close()
        tables[table.name] = ArchiveFile(path.name, rows, path.stat().st_size, checksum(path), columns)
    return Manifest(FORMAT_VERSION, found[0], file_format, snapshot, revisions_of(connection)[-1], __version__, tables)


def _queries(table: ArchiveTable, columns: dict[str, str], run: int, lows: list[int], snapshot: bool) -> Iterator[sql.SQL]:
    """The statements that give a table's rows in order: one, or one a partition."""
    conditions = [f"{'id' if table.name == 'run' else 'run'} = {run}"]
    listed = {name: f'"{name}"' for name in columns}
    if snapshot:
        if table.trajectory is not None:
            conditions.append(f"{table.trajectory} not in ({_LEFT_OUT.format(run=run)})")
        if table.name == "evaluation":
            conditions.append("finished_at is not null")
        listed |= {name: e.format(run=run) for (of, name), e in _SNAPSHOT_COLUMNS.items() if of == table.name}
    for low in lows if table.partitioned else [None]:
        bounds = [] if low is None else [f"start_version >= {low}", f"start_version < {low} + agentrl.bucket_width_v1()"]
        yield sql.SQL(
            f"copy (select {', '.join(listed.values())} from agentrl.{table.name} where {' and '.join(conditions + bounds)}"
            f" order by {table.order}) to stdout (format binary)"
        )


def _stream(connection: psycopg.Connection, query: sql.SQL, columns: dict[str, str]) -> Generator[tuple[list[object], int]]:
    """Rows with the number of bytes that they take."""
    readers = [from_wire(kind) for kind in columns.values()]
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        copy.set_types(["bytea"] * len(columns))
        for fields in copy.rows():
            row = [None if raw is None else read(raw) for read, raw in zip(readers, fields, strict=True)]
            yield row, sum(len(raw) for raw in fields if raw is not None)
