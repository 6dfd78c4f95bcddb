"""Writes docs/reference/queries.md, every saved query and every view with an example: `python scripts/query_page.py URL RUN`.

The results are those of the run RUN in the database at URL; a view that is empty there shows its columns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.monitor.terminal import visible
from agentrl.store.reader import Answer, Reader
from agentrl.store.saved_queries import saved_queries

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "queries.md"
EXAMPLES = Path(__file__).with_name("view_examples.sql")
ROWS = 3
WIDTH = 130
CELL = 60
_EXAMPLE = re.compile(r"^-- (v_\w+): ([^\n]+)\n(.*?;)$", re.M | re.S)
_INTRODUCTION = """# Saved queries and views

Made by `scripts/query_page.py`: each saved query and each view for people, with an example and what it gave on a small
simulated run. Results are cut to their first rows. The columns are explained on the [schema page](schema.md),
[Debug with SQL](../howto/debug-with-sql.md) says which of them to use when.

## Saved queries

All take `--json`, `--csv` and `--limit N`. All but `timeline`, which is about one trajectory, take `--run NAME` (or `latest`;
without it they span all runs).
"""


def page(reader: Reader, run: str) -> str:
    """The whole page, with the results of that run."""
    return "\n".join([_INTRODUCTION, *_queries(reader, run), "## Views\n", *_views(reader)]).rstrip() + "\n"


def _queries(reader: Reader, run: str) -> Iterator[str]:
    newest = reader.saved("latest_trajectory", run=run).result.rows
    for query in saved_queries().values():
        given: dict[str, Any] = {"run": run} if "run" in query.parameters else {}
        command = f"agentrl db query {query.name}"
        if "trajectory" in query.parameters:
            given["trajectory"] = str(newest[0][1])
            command += f" {newest[0][1]}"
        else:
            command += " --run latest"
        yield f"### {query.name}\n\n{query.purpose}\n\n```\n{command}\n```\n"
        yield result(reader.saved(query.name, ROWS, **given))


def _views(reader: Reader) -> Iterator[str]:
    for name, question, statement in _EXAMPLE.findall(EXAMPLES.read_text(encoding="utf-8")):
        yield f"### {name}\n\n{question}\n\n```sql\n{statement}\n```\n"
        yield result(reader.ask(statement.rstrip(";")))


def result(answer: Answer) -> str:
    """Rows as a block of text; one below another where they are too wide."""
    columns = list(answer.result.columns)
    rows = [[_cell(value) for value in row] for row in answer.result.rows]
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]
    if sum(widths) + 2 * len(widths) <= WIDTH or not rows:
        lines = [_line(columns, widths), *(_line(row, widths) for row in rows)]
    else:
        name_width = max(map(len, columns))
        lines = [f"{name:<{name_width}}  {value}".rstrip() for name, value in zip(columns, rows[0], strict=True)]
    return "```\n" + "\n".join(lines) + "\n```\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else visible(str(value))
    return text if len(text) <= CELL else text[: CELL - 3] + "..."


def main() -> None:
    """Write the page."""
    url, run = sys.argv[1:]
    reader = Reader(url)
    try:
        PAGE.write_text(page(reader, run), encoding="utf-8")
    finally:
        reader.close()


if __name__ == "__main__":
    main()
