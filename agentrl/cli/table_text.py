"""Rows as people and programs read them: a table, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agentrl.errors import UsageError
from agentrl.monitor.terminal import visible

if TYPE_CHECKING:
    from agentrl.store.contract import QueryResult


def check_format(as_json: bool, as_csv: bool) -> None:
    """`UsageError` when both are wanted."""
    if as_json and as_csv:
        raise UsageError("Choose one of --json and --csv.")


def print_result(result: QueryResult, *, as_json: bool, as_csv: bool) -> None:
    """Rows as a table, JSON lines or CSV on stdout."""
    if as_json:
        for row in result.rows:
            print(json.dumps(dict(zip(result.columns, map(_plain, row), strict=True)), default=str))
        return
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(result.columns)
        writer.writerows([_plain(value) for value in row] for row in result.rows)
        return
    if not result.rows:
        print("no rows")
        return
    console = Console(width=None if Console().is_terminal else 200)
    cells = [[_cell(value) for value in row] for row in result.rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(result.columns)]
    if sum(widths) + 3 * len(widths) + 1 <= console.width:
        # Text: brackets in what a model wrote are no markup.
        table = Table(*(escape(visible(name)) for name in result.columns))
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    # Too wide for the terminal: a block a row, so that nothing is cut.
    name_width = max(map(len, result.columns))
    for number, row in enumerate(cells, 1):
        print(f"row {number}")
        for name, cell in zip(result.columns, row, strict=True):
            print(f"  {visible(name):<{name_width}}  {cell}")


def _plain(value: Any) -> Any:
    """Bytes as Postgres shows them; NaN and infinity, which JSON does not know, by their names."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return visible(str(_plain(value)))
