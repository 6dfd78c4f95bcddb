"""Reading an archive back as a new run, in one transaction: all of it or nothing.

- Every file is checked before the database is touched.
- Rows go into tables of their own that become partitions at the very end, so nobody waits for a long import.
- The new run's conservation is tested before the commit.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.archive_files import BATCH_BYTES, BATCH_ROWS, read_rows, require_parquet
from agentrl.store.archive_tables import ARCHIVE_TABLES, ArchiveTable, Manifest, read_manifest, table_columns
from agentrl.store.archive_values import Value, to_wire
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.store.run_names import check_run_name

LOCK_TIMEOUT = "5s"


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """What was read."""

    id: int
    name: str
    status: str
    trajectories: int


def import_archive(store: PostgresConnection, folder: Path, name: str | None = None) -> ImportedRun:
    """Create a run from an archive, under its own name or another one. A run that was running becomes interrupted."""
    manifest = read_manifest(folder)
    if name is not None:
        check_run_name(name)
    if manifest.file_format == "parquet":
        require_parquet()
    try:
        with store.transaction() as connection:
            # One at a time: two imports of the same archive would not see each other's trajectories.
            connection.execute("select pg_advisory_xact_lock(hashtext('agentrl.archive'))")
            connection.execute("select set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
            return _Import(connection, folder, manifest, manifest.run if name is None else name).run()
    except psycopg.errors.LockNotAvailable as e:
        raise NotReadyError(
            "Another transaction holds a lock on the store's tables; nothing was imported. Try again later."
        ) from e
    except (psycopg.errors.IntegrityError, psycopg.errors.DataError) as e:
        raise UsageError(f"{folder} does not fit this database, nothing was imported: {e.diag.message_primary}") from e


class _Numbers:
    """New numbers for the rows of one table, in their old order."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._old = array("q")
        self._new = array("q")

    def reserve(self, connection: psycopg.Connection, n: int) -> None:
        sequence = f"pg_get_serial_sequence('agentrl.{self._table}', 'id')"
        for (number,) in connection.execute(f"select nextval({sequence}) from generate_series(1, %s)".encode(), (n,)):
            self._new.append(number)

    def take(self, old: int) -> int:
        """The number of the next row."""
        if self._old and old <= self._old[-1]:
            raise UsageError(f"the rows of {self._table} are not in the order of their ids")
        self._old.append(old)
        return self._new[len(self._old) - 1]

    def of(self, old: int) -> int:
        at = bisect_left(self._old, old)
        if at == len(self._old) or self._old[at] != old:
            raise UsageError(f"a row refers to {self._table} {old}, which the archive does not hold")
        return self._new[at]


class _Import:
    """One import within its transaction."""

    def __init__(self, connection: psycopg.Connection, folder: Path, manifest: Manifest, name: str) -> None:
        self._connection = connection
        self._folder = folder
        self._manifest = manifest
        self._name = name
        self._numbers = {table.name: _Numbers(table.name) for table in ARCHIVE_TABLES if table.numbered}
        self._sources: dict[int, int] = {}
        self._retired: list[tuple[int, int]] = []
        self._newest = 0
        self._run = 0
        self._width = int(self._one("select agentrl.bucket_width_v1()"))

    def run(self) -> ImportedRun:
        if self._one("select count(*) from agentrl.run where name = %s", self._name):
            raise UsageError(f"A run called {self._name!r} exists already; choose another name with --name.")
        if self._manifest.tables["run"].rows != 1:
            raise UsageError(f"{self._path('run')} must hold one run, it holds {self._manifest.tables['run'].rows}.")
        for table in ARCHIVE_TABLES:
            self._check_columns(table)
        for table in ARCHIVE_TABLES:
            if table.name == "import":
                self._find_sources()
            if table.name == "trajectory":
                self._create_partitions()
            self._load(table)
        self._attach_partitions()
        self._connection.execute("insert into agentrl.reap (run) values (%s)", (self._run,))
        if not self._one("select holds from agentrl.v_conservation where run = %s", self._run):
            raise UsageError(f"{self._folder} does not hold every trajectory in exactly one place; nothing was imported.")
        status = self._one("select status from agentrl.run where id = %s", self._run)
        return ImportedRun(self._run, self._name, str(status), self._manifest.tables["trajectory"].rows)

    def _one(self, query: str, *parameters: Any) -> Any:
        found = self._connection.execute(query.encode(), parameters).fetchone()
        assert found is not None
        return found[0]

    def _path(self, table: str) -> Path:
        return self._folder / self._manifest.tables[table].file

    def _check_columns(self, table: ArchiveTable) -> None:
        """An archive of an earlier release may lack columns, which then hold their defaults; never the other way round."""
        known = table_columns(self._connection, table.name)
        for name, kind in self._manifest.tables[table.name].columns.items():
            if known.get(name) != kind:
                raise UsageError(
                    f"{self._path(table.name)} has a column {name} ({kind}) that this database does not know: the archive is "
                    f"of release {self._manifest.library}. Import it with that release, or migrate the database."
                )

    def _rows(self, table: str, *columns: str) -> Iterator[list[Value]]:
        kinds = self._manifest.tables[table].columns
        return read_rows(self._path(table), {name: kinds[name] for name in columns})

    def _find_sources(self) -> None:
        """The runs here whose trajectories the archived run imported: found by the trajectories, whatever they are called."""
        imports: dict[int, int] = {row[0]: row[1] for row in self._rows("import", "id", "source")}
        for batch in _batches(([i, t], 40) for i, t in self._rows("imported", "import", "trajectory")):
            found = {
                str(trajectory): run
                for trajectory, run in self._connection.execute(
                    "select trajectory, run from agentrl.event where trajectory = any (%s::uuid[]) and from_place is null"
                    " and to_place = 'live'",
                    ([t for _, t in batch],),
                )
            }
            for i, trajectory in batch:
                run = found.get(trajectory)
                if run is None or self._sources.setdefault(imports[i], run) != run:
                    raise UsageError(
                        f"Run {self._manifest.run} trains on trajectories of another run, which this database does not hold "
                        f"({trajectory}): import that run first."
                    )
        for source in imports.values():
            if source not in self._sources:  # an import that took nothing
                raise UsageError(
                    f"Run {self._manifest.run} imported from a run that can't be found here: import that one first."
                )

    def _lows(self) -> list[int]:
        lows = range(0, self._newest + 1, self._width)
        return [low for low in lows if not any(a <= low < b for a, b in self._retired)]

    def _create_partitions(self) -> None:
        self._retired = [(low, high) for low, high in self._rows("retired", "low", "high")]
        self._newest = max((version for (version,) in self._rows("policy_version", "version")), default=0)
        for low in self._lows():
            for table in ARCHIVE_TABLES:
                if table.partitioned:
                    self._connection.execute("select agentrl.create_partition_v1(%s, %s, %s)", (self._run, table.name, low))

    def _attach_partitions(self) -> None:
        for low in self._lows():
            for table in ARCHIVE_TABLES:
                if table.partitioned:
                    self._connection.execute("select agentrl.attach_partition_v1(%s, %s, %s)", (self._run, table.name, low))
        self._connection.execute("select agentrl.ensure_partitions_v1(%s, %s)", (self._run, self._newest))

    def _load(self, table: ArchiveTable) -> None:
        listed = self._manifest.tables[table.name]
        if table.numbered:
            self._numbers[table.name].reserve(self._connection, listed.rows)
        names = list(listed.columns)
        changes = self._changes(table)
        at = {name: names.index(name) for name in ("start_version", "id") if name in names}
        writers = [to_wire(kind) for kind in listed.columns.values()]
        n = 0
        for batch in _batches(self._read(table, names)):
            n += len(batch)
            if n > listed.rows:
                raise UsageError(f"{self._path(table.name)} holds more rows than the {listed.rows} that were written.")
            if table.name == "trajectory":
                self._refuse_known([row[at["id"]] for row in batch])
            by_target: dict[str, list[list[bytes | None]]] = {}
            for row in batch:
                target = table.name
                if table.partitioned:
                    target = f"{target}_r{self._run}_v{row[at['start_version']] // self._width * self._width}"
                for i, change in changes.items():
                    row[i] = change(row[i])
                by_target.setdefault(target, []).append(_encode(row, writers, self._path(table.name)))
            for target, rows in by_target.items():
                self._copy(target, names, rows)
        if n != listed.rows:
            raise UsageError(f"{self._path(table.name)} holds {n} rows, {listed.rows} were written.")

    def _read(self, table: ArchiveTable, names: list[str]) -> Iterator[tuple[list[Value], int]]:
        for row in self._rows(table.name, *names):
            yield row, sum(len(v) for v in row if isinstance(v, str | bytes))

    def _changes(self, table: ArchiveTable) -> dict[int, Callable[[Value], Value]]:
        """Column -> what becomes of its value."""
        by_name: dict[str, Callable[[Value], Value]] = {}
        if table.name == "run":
            by_name = {
                "id": self._take_run, "name": lambda _: self._name, "trainer_owner": lambda _: None,
                "trainer_lease_until": lambda _: None,
                "status": lambda status: "interrupted" if status == "running" else status,
            }  # fmt: skip
        elif table.numbered:
            by_name["id"] = self._numbers[table.name].take
        by_name |= {column: _optional(self._numbers[to].of) for column, to in table.references.items()}
        by_name |= {"run": self._numbers["run"].of, "source": _optional(lambda source: self._sources[source])}
        names = list(self._manifest.tables[table.name].columns)
        return {i: by_name[name] for i, name in enumerate(names) if name in by_name}

    def _take_run(self, old: int) -> int:
        self._run = self._numbers["run"].take(old)
        return self._run

    def _refuse_known(self, trajectories: list[str]) -> None:
        found = self._connection.execute(
            "select e.trajectory, r.name from agentrl.event e join agentrl.run r on r.id = e.run"
            " where e.trajectory = any (%s::uuid[]) limit 1",
            (trajectories,),
        ).fetchone()
        if found is not None:
            raise UsageError(
                f"This database holds trajectory {found[0]} already, in run {found[1]}: an archive can be imported only where "
                "its run is not."
            )

    def _copy(self, target: str, columns: list[str], rows: list[list[bytes | None]]) -> None:
        statement = sql.SQL("copy agentrl.{} ({}) from stdin (format binary)").format(
            sql.Identifier(target), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["bytea"] * len(columns))
            for row in rows:
                copy.write_row(row)


def _optional(change: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: None if value is None else change(value)


def _encode(row: list[Value], writers: list[Callable[[Value], bytes]], path: Path) -> list[bytes | None]:
    try:
        return [None if value is None else write(value) for write, value in zip(writers, row, strict=True)]
    except (TypeError, ValueError, struct.error, AttributeError) as e:
        raise UsageError(f"{path} holds a value of another type than its column: {e}") from e


def _batches(rows: Iterator[tuple[list[Value], int]]) -> Iterator[list[list[Value]]]:
    batch: list[list[Value]] = []
    size = 0
    for row, n in rows:
        batch.append(row)
        size += n
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
