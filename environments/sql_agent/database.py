"""The databases that questions are about: made on the host, as bytes of an SQLite file, and queried in the sandbox.

The policy's SQL never runs on the host: a recursive query without end, or one that attaches files, costs its sandbox alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from agentrl.errors import EnvironmentFault
from sandboxes.contract import Sandbox

Cell = int | float | str | None
Rows = list[list[Cell]]

PATH = "/workspace/data.db"
MAX_ROWS = 50
MAX_FILE_MB = 32
"""What is sent to a sandbox in one piece."""
_GOLD_STEPS = 200_000_000
"""Virtual-machine steps after which a gold query is given up; the data set is at fault then."""
_PROGRAM = """\
import sqlite3
def shown(cell):
    text = "NULL" if cell is None else cell.hex() if isinstance(cell, bytes) else str(cell)
    return text if len(text) <= 200 else text[:200] + "..."
try:
    rows = sqlite3.connect("data.db").execute({query!a}).fetchmany({most} + 1)
    for row in rows[:{most}]:
        print("|".join(map(shown, row)))
    if len(rows) > {most}:
        print("... more than {most} rows")
except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
    print(f"error: {{error}}")
"""


def make(script: str, rows: Mapping[str, Sequence[Sequence[Cell]]]) -> bytes:
    """An SQLite file: the tables of ``script``, filled with ``rows`` by table."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(script)
        for table, lines in rows.items():
            marks = ", ".join("?" * len(lines[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", lines)
        database.commit()
        return database.serialize()


def gold(data: bytes, query: str) -> Rows:
    """The result of a trusted query; `EnvironmentFault` when it fails or does not end."""
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(data)
            database.set_progress_handler(lambda: 1, _GOLD_STEPS)
            return [[_cell(cell) for cell in row] for row in database.execute(query)]
        except sqlite3.Error as error:
            raise EnvironmentFault(f"the gold query {query!r:.300} failed: {error}") from error


def read_file(path: Path) -> bytes:
    """The bytes of a database file; `EnvironmentFault` when it is missing or has more than `MAX_FILE_MB`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"the database {path} can't be read: {error.strerror}") from error
    if len(data) > MAX_FILE_MB << 20:
        raise EnvironmentFault(f"the database {path} has {len(data) >> 20} MB; at most {MAX_FILE_MB} can be sent to a sandbox")
    return data


async def query(sandbox: Sandbox, text: str, timeout_s: float) -> str:
    """Rows of a query in the sandbox, a line each with cells parted by ``|``; errors and time-outs are text too."""
    result = await sandbox.run_python(_PROGRAM.format(query=text, most=MAX_ROWS), timeout=timeout_s, max_output=1 << 16)
    if result.timed_out:
        return f"error: no result within {timeout_s:g} s"
    if result.exit_code:
        return f"error: the query ended its process (exit code {result.exit_code})"
    return result.text.rstrip("\n")


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, (int, float, str)) else str(value)
