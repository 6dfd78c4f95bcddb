"""What an archive of a run is made of: its tables, the order of their rows, and what changes when it is read back.

Read back, a run gets a new id, and so do the rows of tables that number them; ``references`` follow. Everything else, the ids
of trajectories and groups included, stays as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg

from agentrl.errors import UsageError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class ArchiveTable:
    """A table of the archive. Rows are in the order of their key, so that equal runs give equal files."""

    name: str
    order: str
    trajectory: str | None = None
    """Column that names a trajectory."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Column -> the table whose numbers it holds."""
    numbered: bool = False
    """Its ``id`` is a number that the database gives out."""
    partitioned: bool = False


ARCHIVE_TABLES: tuple[ArchiveTable, ...] = (
    ArchiveTable("run", "id", numbered=True),
    ArchiveTable("task", "split, idx"),
    ArchiveTable("task_cursor", "split"),
    ArchiveTable("policy_version", "version"),
    ArchiveTable("engine_version", "id", numbered=True),
    ArchiveTable("checkpoint", "id", numbered=True),
    ArchiveTable("evaluation", "id", numbered=True),
    ArchiveTable("import", "id", numbered=True),
    ArchiveTable("retired", "low"),
    ArchiveTable("grp", "id"),
    ArchiveTable("reward", "id", "trajectory", numbered=True),
    ArchiveTable("trajectory", "id", "id", {"evaluation": "evaluation"}, partitioned=True),
    ArchiveTable("segment", "trajectory, seg", "trajectory", partitioned=True),
    ArchiveTable("trained", "trajectory, branch, step", "trajectory", {"reward_id": "reward"}, partitioned=True),
    ArchiveTable("imported", "trajectory", "trajectory", {"import": "import"}),
    ArchiveTable("step", "branch, step"),
    ArchiveTable("consumed", "branch, trajectory", "trajectory"),
    ArchiveTable("dropped", "trajectory", "trajectory", {"evaluation": "evaluation"}),
    ArchiveTable("evaluated", "trajectory", "trajectory", {"evaluation": "evaluation"}),
    ArchiveTable("ready", "item"),
    ArchiveTable("event", "id", "trajectory", numbered=True),
)
"""In an order in which each table comes after those that it refers to."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One table of an archive: how many rows, in which file, with which columns (name -> type in the database)."""

    file: str
    rows: int
    bytes: int
    sha256: str
    columns: dict[str, str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of contents, `MANIFEST` in the archive's folder; written last."""

    format_version: int
    run: str
    file_format: str
    snapshot: bool
    schema: str
    library: str
    tables: dict[str, ArchiveFile]

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, after every file was found to be what it lists. `UsageError` names the first that is not."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageError(f"{folder} holds no archive: there is no {MANIFEST}. `agentrl db export RUN FOLDER` makes one.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        version = fields["format_version"]
        if version == FORMAT_VERSION:
            fields["tables"] = {str(name): ArchiveFile(**listed) for name, listed in fields["tables"].items()}
            manifest = Manifest(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise UsageError(f"{path} is damaged: {type(e).__name__}: {e}") from e
    if version != FORMAT_VERSION:
        raise UsageError(f"{path} is of format {version}; this release reads format {FORMAT_VERSION}.")
    known = {table.name for table in ARCHIVE_TABLES}
    if set(manifest.tables) != known:
        raise UsageError(
            f"{path} lists other tables than this release knows: {', '.join(sorted(set(manifest.tables) ^ known))}."
        )
    for name, listed in manifest.tables.items():
        check_file(folder / f"{name}.{manifest.file_format}", listed)
    return manifest


def check_file(path: Path, listed: ArchiveFile) -> None:
    """`UsageError` unless the file is the one that was listed."""
    if path.name != listed.file or not path.is_file():
        raise UsageError(f"{path} is missing; the archive is not complete.")
    size = path.stat().st_size
    if size != listed.bytes:
        raise UsageError(f"{path} is damaged: it has {size} bytes, {listed.bytes} were written.")
    if checksum(path) != listed.sha256:
        raise UsageError(f"{path} is damaged: its checksum is not the one that was written.")


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table_columns(connection: psycopg.Connection, table: str) -> dict[str, str]:
    """Columns of a table in order, with their types."""
    return dict(
        connection.execute(
            "select attname::text, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
            (f'agentrl."{table}"',),
        ).fetchall()
    )
