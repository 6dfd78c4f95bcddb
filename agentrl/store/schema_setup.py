"""Creates the schema `agentrl` where it is absent and refuses one of another release.

The SQL lies in `schema/tables` and `schema/functions` (functions and views: the code) and is run in the order of the file
names, in one transaction. Two things are added on the way: `@Name@` becomes the quoted values of the enum ``Name`` of
`agentrl.types`, so CHECK constraints can't drift from the code; and the comment above a table, view or function and the one
behind a column become its COMMENT, so that `\\d+` shows what the file says.

An existing schema is changed by `agentrl.store.schema_migration` alone, when a person asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from agentrl.errors import NotReadyError
from agentrl.types import DropReason, FinishReason, Origin, Outcome, Place, Purpose, Termination

REVISION = "post_0003"
"""The newest revision: that of a new database."""

WORKS_WITH = ("pre_0003", REVISION)
"""Revisions that this release works with: what its own `pre` migration has added is all it needs."""

FIRST_REVISION = "pre_0001"
SCHEMA_LOCK = 5_206_117_301
_ENUMS: dict[str, type[StrEnum]] = {
    e.__name__: e for e in (DropReason, FinishReason, Origin, Outcome, Place, Purpose, Termination)
}
_OBJECT = re.compile(
    r"((?:^--[^\n]*\n)+)^create (?:or replace )?(table|view|sequence|function) agentrl\.(\w+)(.*?)(?=^--|^create |^do |\Z)",
    re.M | re.S,
)
_COLUMN = re.compile(r"^  \"?(\w+)\"?,?[ ][^\n]*?-- ([^\n]+)$", re.M)
_TABLE = r"(?:^--[^\n]*\n)+create table agentrl\.{}\b.*?(?=\n\n|\Z)"


def schema_files(kind: str = "*") -> dict[str, str]:
    """Path and text of each schema file, enum values filled in; ``kind``: ``tables``, ``functions`` or both."""
    found = {}
    for folder in ("tables", "functions") if kind == "*" else (kind,):
        listed = (f for f in (files("agentrl.store") / "schema" / folder).iterdir() if f.name.endswith(".sql"))
        for file in sorted(listed, key=lambda f: f.name):
            found[f"{folder}/{file.name}"] = _fill_enums(file.read_text(encoding="utf-8"))
    return found


def _fill_enums(text: str) -> str:
    return re.sub(r"@(\w+)@", lambda m: ", ".join(f"'{member.value}'" for member in _ENUMS[m.group(1)]), text)


def comments(text: str) -> list[tuple[str, str]]:
    """Pairs of a commented object (as COMMENT ON names it) and its sentence, read from the comments of a schema file."""
    found: list[tuple[str, str]] = []
    for above, kind, name, body in _OBJECT.findall(text):
        sentence = " ".join(line.removeprefix("--").strip() for line in above.strip().splitlines())
        found.append((f"{kind} agentrl.{name}", sentence))
        if kind in ("table", "view"):
            columns = body.partition("\n) as\n")[0]
            found += [(f'column agentrl.{name}."{column}"', said) for column, said in _COLUMN.findall(columns)]
    return found


def ensure_schema(connection: psycopg.Connection) -> None:
    """Create the schema unless it is there; safe when several processes start at once. Commits."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        if not revisions_of(connection):
            create_schema(connection)
        found = revisions_of(connection)
    if not set(found) & set(WORKS_WITH):
        raise NotReadyError(
            f"The database holds the schema agentrl of another release ({found[-1]}; this one works with {REVISION}). "
            "Run `agentrl db migrate`, or point AGENTRL_DATABASE_URL at another database."
        )


def create_schema(connection: psycopg.Connection) -> None:
    """The whole schema in an empty database, marked with the newest revisions."""
    try:
        connection.execute("create schema agentrl")
    except psycopg.errors.DuplicateSchema as e:
        raise NotReadyError(
            "The database holds a schema called agentrl that this library did not create. "
            "Rename or drop that schema, or point AGENTRL_DATABASE_URL at another database."
        ) from e
    connection.execute("comment on schema agentrl is 'Trajectory store of agentrl: state is where the row is.'")
    for text in schema_files().values():
        _run(connection, text)
    connection.execute(
        "create table agentrl.alembic_version (version_num varchar(32) not null constraint alembic_version_pkc primary key)"
    )
    describe_version_table(connection)
    connection.execute("insert into agentrl.alembic_version (version_num) values (%s)", (REVISION,))


def describe_version_table(connection: psycopg.Connection) -> None:
    """Comments on Alembic's own table."""
    connection.execute("comment on table agentrl.alembic_version is 'Revisions of this schema, kept by Alembic.'")
    connection.execute("comment on column agentrl.alembic_version.version_num is 'Newest revision applied of a chain.'")


def revisions_of(connection: psycopg.Connection) -> tuple[str, ...]:
    """The newest revisions that a database holds, the newest last: none without a schema of ours, two between `pre` and `post`.

    The first store knew no revisions.
    """
    row = connection.execute(
        "select to_regclass('agentrl.alembic_version')::text, to_regclass('agentrl.schema_version')::text"
    ).fetchone()
    assert row is not None
    if row[0] is not None:
        found = [name for (name,) in connection.execute("select version_num::text from agentrl.alembic_version").fetchall()]
        return tuple(sorted(found, key=lambda name: (name.split("_")[1], name.startswith("post"))))
    return () if row[1] is None else (FIRST_REVISION,)


def missing_columns(connection: psycopg.Connection) -> list[str]:
    """Columns of the schema files' tables that a database lacks, as ``table.column``: another state of the code made it."""
    wanted = [
        re.fullmatch(r'column agentrl\.(\w+)\."(\w+)"', target)
        for text in schema_files("tables").values()
        for target, _ in comments(text)
    ]
    rows = connection.execute(
        "select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid"
        " where c.relnamespace = 'agentrl'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0"
    ).fetchall()
    there = {name for (name,) in rows}
    return [name for found in wanted if found is not None and (name := f"{found[1]}.{found[2]}") not in there]


def create_tables(bind: Any, names: Iterable[str]) -> None:
    """For migrations: tables of the schema files by name, with their indexes and comments. ``bind`` is Alembic's connection."""
    connection = bind.connection.driver_connection
    texts = "\n\n".join(schema_files("tables").values())
    for name in names:
        found = re.search(_TABLE.format(name), texts, re.M | re.S)
        assert found is not None, name
        _run(connection, found[0] + "\n")


def replace_code(bind: Any, keep: Collection[str]) -> None:
    """For migrations: replace all views and functions by those of the files.

    Functions named in ``keep`` stay where no file defines them, and are replaced where one does.
    """
    connection = bind.connection.driver_connection
    for (view,) in connection.execute(
        "select c.relname::text from pg_class c where c.relnamespace = 'agentrl'::regnamespace and c.relkind = 'v'"
    ).fetchall():
        connection.execute(sql.SQL("drop view if exists agentrl.{} cascade").format(sql.Identifier(view)))
    for name, arguments in connection.execute(
        "select proname::text, pg_get_function_identity_arguments(oid) from pg_proc"
        " where pronamespace = 'agentrl'::regnamespace and not proname = any (%s)",
        (list(keep),),
    ).fetchall():
        connection.execute(f'drop function agentrl."{name}"({arguments})')
    for text in schema_files("functions").values():
        _run(connection, text)
    for text in schema_files("tables").values():
        _comment(connection, text)


def _run(connection: psycopg.Connection, text: str) -> None:
    connection.execute(text.encode())
    _comment(connection, text)


def _comment(connection: psycopg.Connection, text: str) -> None:
    for target, sentence in comments(text):
        connection.execute(sql.SQL("comment on {} is {}").format(sql.SQL(target), sql.Literal(sentence)))
