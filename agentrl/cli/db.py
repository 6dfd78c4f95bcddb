"""``agentrl db``: questions about the store."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.engine import make_url

from agentrl.cli import archive_commands
from agentrl.cli.session import database_session, require_run, store_session
from agentrl.cli.trajectory_text import visible
from agentrl.errors import UsageError
from agentrl.store.contract import QueryResult
from agentrl.store.saved_queries import saved_queries

app = typer.Typer(help="Ask the trajectory store.", no_args_is_help=True)
archive_commands.add_to(app)


@app.command("query")
def query(
    name: str = typer.Argument(..., help="Saved query; `agentrl db queries` lists them."),
    trajectory: str | None = typer.Argument(None, help="Trajectory id, for queries about one trajectory."),
    run: str | None = typer.Option(None, "--run", help="Run name or 'latest'. Default: all runs."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a row."),
    as_csv: bool = typer.Option(False, "--csv", help="Comma-separated values."),
) -> None:
    """Run a saved query, for example: agentrl db query conservation."""
    if as_json and as_csv:
        raise UsageError("Choose one of --json and --csv.")
    with store_session() as session:
        parameters: dict[str, Any] = {}
        if run is not None:
            parameters["run"] = require_run(session, run).spec.name
        if trajectory is not None:
            parameters["trajectory"] = trajectory
        result = session.store.query(name, **parameters)
    print_result(result, as_json=as_json, as_csv=as_csv)


@app.command("queries")
def queries() -> None:
    """List the saved queries with their purpose."""
    table = Table("name", "purpose")
    for saved in saved_queries().values():
        table.add_row(saved.name, saved.purpose)
    Console(width=None if Console().is_terminal else 160).print(table)


@app.command("status")
def status() -> None:
    """The schema's revision and the migrations that are pending."""
    from agentrl.store.schema_migration import schema_status

    with database_session() as url:
        found = schema_status(make_url(url))
    print(f"revision  {found.found or 'none: the first command that needs the store creates the schema'}")
    print(f"pending   {', '.join(found.pending) or 'nothing'}")


@app.command("migrate")
def migrate_schema(
    phase: str | None = typer.Option(
        None, "--phase", help="pre: only add, while processes of the release before run; post: remove. Default: both."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be applied; change nothing."),
) -> None:
    """Bring the schema to this release, for example: agentrl db migrate --phase pre."""
    from agentrl.store.schema_migration import PHASES, migrate, schema_status

    if phase not in (None, *PHASES):
        raise UsageError(f"There is no phase {phase!r}: use pre or post, or leave it out for both.")
    with database_session() as named:
        url = make_url(named)
        if dry_run:
            pending = [r for r in schema_status(url).pending if phase is None or r.startswith(phase)]
            print(f"would apply {', '.join(pending) or 'nothing'}")
        else:
            print(f"applied {', '.join(migrate(url, phase)) or 'nothing: the schema is up to date'}")


@app.command("url")
def url() -> None:
    """The database URL without its password, for psql and other tools; a private server runs while a command uses it."""
    with store_session() as session:
        print(session.store.masked_url)


def print_result(result: QueryResult, *, as_json: bool, as_csv: bool) -> None:
    """Rows as a table, JSON lines or CSV on stdout."""
    if as_json:
        for row in result.rows:
            print(json.dumps(dict(zip(result.columns, row, strict=True)), default=str))
        return
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(result.columns)
        writer.writerows(result.rows)
        return
    if not result.rows:
        print("no rows")
        return
    console = Console(width=None if Console().is_terminal else 200)
    cells = [[_cell(value) for value in row] for row in result.rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(result.columns)]
    if sum(widths) + 3 * len(widths) + 1 <= console.width:
        table = Table(*result.columns)
        for row in cells:
            table.add_row(*row)
        console.print(table)
        return
    # Too wide for the terminal: a block a row, so that nothing is cut.
    name_width = max(map(len, result.columns))
    for number, row in enumerate(cells, 1):
        print(f"row {number}")
        for name, cell in zip(result.columns, row, strict=True):
            print(f"  {name:<{name_width}}  {cell}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return visible(str(value))
