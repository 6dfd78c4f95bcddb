"""Writes docs/reference/schema.md from the comments in a database: `python scripts/schema_page.py [URL]`.

Without a URL the schema is made in a server of its own, which is removed afterwards. The groups are the schema's files.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from agentrl.store.embedded import start_embedded, stop_embedded
from agentrl.store.reader import Reader
from agentrl.store.schema_setup import schema_files

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "schema.md"
_TITLES = {
    "tables/10_runs.sql": "Runs, tasks and weights",
    "tables/20_trajectories.sql": "Trajectories",
    "tables/30_places.sql": "Places and the ledger",
    "functions/21_decode.sql": "Decoding",
    "functions/60_views.sql": "Views over all places",
    "functions/61_people.sql": "Views for debugging",
    "functions/62_weights.sql": "Views of weights",
    "functions/63_alerts.sql": "Alerts",
}
_INTRODUCTION = """# Schema

Made from the comments in the database by `scripts/schema_page.py`; `\\d+ agentrl.NAME` in psql shows the same. All objects
are in the schema `agentrl`. Times are `timestamptz`, durations in seconds end in `_s`, ids of trajectories sort by time. Names
of tables, views and columns are public API; functions that are not on this page belong to the library.

[Debug with SQL](../howto/debug-with-sql.md) has recipes.
"""
_COLUMNS = """
  select a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(col_description(c.oid, a.attnum), '')
  from pg_class c join pg_attribute a on a.attrelid = c.oid
  where c.oid = to_regclass('agentrl.' || quote_ident(%s)) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_FUNCTIONS = """
  select format('%%s(%%s)', proname, pg_get_function_arguments(oid)), pg_get_function_result(oid),
         coalesce(obj_description(oid), '')
  from pg_proc
  where pronamespace = 'agentrl'::regnamespace and proname = %s and (proname !~ '_v[0-9]+$' or proname = 'find_run_v1')
"""


def page(connection: psycopg.Connection) -> str:
    """The whole page for the schema in that database."""
    return "\n".join([_INTRODUCTION, *_sections(connection)]).rstrip() + "\n"


def _sections(connection: psycopg.Connection) -> Iterator[str]:
    for file, title in _TITLES.items():
        text = schema_files()[file]
        yield f"## {title}\n"
        yield _prose(text) + "\n"
        for kind, name in re.findall(r"^create (?:or replace )?(table|view|function) agentrl\.(\w+)", text, re.M):
            if kind == "function":
                yield from _function(connection, name)
            else:
                yield from _relation(connection, kind, name)
    yield from _others(connection)


def _prose(text: str) -> str:
    """The comment at the top of a file."""
    lines = re.match(r"(?:--[^\n]*\n)+", text)
    return " ".join(line.removeprefix("--").strip() for line in lines[0].splitlines()) if lines else ""


def _relation(connection: psycopg.Connection, kind: str, name: str) -> Iterator[str]:
    said = connection.execute(
        "select obj_description(to_regclass('agentrl.' || quote_ident(%s)), 'pg_class')", (name,)
    ).fetchone()
    assert said is not None
    yield f"### {name} ({kind})\n\n{said[0]}\n"
    yield "| column | type | |\n|---|---|---|"
    for column, type_, sentence in connection.execute(_COLUMNS, (name,)).fetchall():
        yield f"| {column} | {type_} | {_cell(sentence)} |"
    yield ""


def _function(connection: psycopg.Connection, name: str) -> Iterator[str]:
    for signature, result, sentence in connection.execute(_FUNCTIONS, (name,)).fetchall():
        yield f"### {signature} -> {result}\n\n{sentence}\n"


def _others(connection: psycopg.Connection) -> Iterator[str]:
    """Tables that no file of the schema makes, but not the partitions of those that one makes."""
    made = {name for text in schema_files().values() for name in re.findall(r"^create table agentrl\.(\w+)", text, re.M)}
    found = connection.execute(
        "select relname::text from pg_class where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p')"
        " and not relispartition order by 1"
    ).fetchall()
    others = [name for (name,) in found if name not in made]
    if others:
        yield "## Upkeep\n"
    for name in others:
        yield from _relation(connection, "table", name)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    if sys.argv[1:]:
        with psycopg.connect(sys.argv[1]) as connection:
            PAGE.write_text(page(connection), encoding="utf-8")
        return
    home = Path(tempfile.mkdtemp(prefix="agentrl-schema-", dir="/tmp"))
    home.chmod(0o755)
    try:
        url = start_embedded(home)
        Reader(url).close()
        with psycopg.connect(url) as connection:
            PAGE.write_text(page(connection), encoding="utf-8")
    finally:
        stop_embedded(home)
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
