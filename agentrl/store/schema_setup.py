"""Creates the schema `agentrl` where it is absent and refuses one of another version.

The SQL lies in `schema/*.sql` and is run in the order of the file names, in one transaction. Two things are added on the way:
`@Name@` becomes the quoted values of the enum ``Name`` of `agentrl.types`, so CHECK constraints can't drift from the code; and
the comment above a table, view or function and the one behind a column become its COMMENT, so that `\\d+` shows what the file
says.
"""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.resources import files

import psycopg
from psycopg import sql

from agentrl.errors import NotReadyError
from agentrl.types import DropReason, FinishReason, Origin, Outcome, Place, Purpose, Termination

SCHEMA_VERSION = 1
_LOCK = 5_206_117_301
_ENUMS: dict[str, type[StrEnum]] = {
    e.__name__: e for e in (DropReason, FinishReason, Origin, Outcome, Place, Purpose, Termination)
}
_OBJECT = re.compile(
    r"((?:^--[^\n]*\n)+)^create (table|view|sequence|function) agentrl\.(\w+)(.*?)(?=^--|^create |^do |\Z)", re.M | re.S
)
_COLUMN = re.compile(r"^  \"?(\w+)\"? [^\n]*?-- ([^\n]+)$", re.M)


def schema_files() -> dict[str, str]:
    """Name and text of each schema file, enum values filled in."""
    folder = files("agentrl.store") / "schema"
    texts = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".sql")}
    return {name: _fill_enums(texts[name]) for name in sorted(texts)}


def _fill_enums(text: str) -> str:
    return re.sub(r"@(\w+)@", lambda m: ", ".join(f"'{member.value}'" for member in _ENUMS[m.group(1)]), text)


def comments(text: str) -> list[tuple[str, str]]:
    """Pairs of a commented object (as COMMENT ON names it) and its sentence, read from the comments of a schema file."""
    found: list[tuple[str, str]] = []
    for above, kind, name, body in _OBJECT.findall(text):
        sentence = " ".join(line.removeprefix("--").strip() for line in above.strip().splitlines())
        found.append((f"{kind} agentrl.{name}", sentence))
        if kind == "table":
            found += [(f'column agentrl.{name}."{column}"', said) for column, said in _COLUMN.findall(body)]
    return found


def ensure_schema(connection: psycopg.Connection) -> None:
    """Create the schema unless it is there; safe when several processes start at once. Commits."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        there = connection.execute("select to_regclass('agentrl.schema_version')").fetchone()
        if there is not None and there[0] is not None:
            _check_version(connection)
            return
        try:
            connection.execute("create schema agentrl")
        except psycopg.errors.DuplicateSchema as e:
            raise NotReadyError(
                "The database holds a schema called agentrl that this library did not create. "
                "Rename or drop that schema, or point AGENTRL_DATABASE_URL at another database."
            ) from e
        connection.execute("comment on schema agentrl is 'Trajectory store of agentrl: state is where the row is.'")
        for text in schema_files().values():
            connection.execute(text.encode())
            for target, sentence in comments(text):
                connection.execute(sql.SQL("comment on {} is {}").format(sql.SQL(target), sql.Literal(sentence)))
        connection.execute("insert into agentrl.schema_version (version) values (%s)", (SCHEMA_VERSION,))


def _check_version(connection: psycopg.Connection) -> None:
    row = connection.execute("select max(version) from agentrl.schema_version").fetchone()
    found = row[0] if row else None
    if found != SCHEMA_VERSION:
        raise NotReadyError(
            f"The database holds version {found} of the schema agentrl; this release works with version {SCHEMA_VERSION}. "
            "Install the release that created it, or point AGENTRL_DATABASE_URL at another database."
        )
