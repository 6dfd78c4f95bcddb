"""``agentrl db``: questions about the store, and its schema. Whatever only reads does so as `agentrl.store.reader` promises."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from agentrl.cli import archive_commands
from agentrl.cli.db_reuse import reuse
from agentrl.cli.db_shell import shell
from agentrl.cli.db_vacuum import vacuum_store
from agentrl.cli.session import MOST, database_session, reader_session, require_run, require_trajectory, store_session
from agentrl.cli.show import show
from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.store.reader import Answer

app = typer.Typer(help="Ask the trajectory store; keep it small, carry it about.", no_args_is_help=True)

_JSON = typer.Option(False, "--json", help="One JSON object a row.")
_CSV = typer.Option(False, "--csv", help="Comma-separated values.")
_TIMEOUT = typer.Option(None, "--timeout", min=0.001, max=1e6, help="Seconds that the statement may take. Default: 30.")
_LIMIT = typer.Option(None, "--limit", min=1, max=MOST, help="Most rows. Default: 10000, or fewer where the query says so.")


@app.command("query")
def query(
    name: str = typer.Argument(..., help="Saved query; `agentrl db queries` lists them."),
    trajectory: str | None = typer.Argument(None, help="Trajectory id or 'latest', for queries about one trajectory."),
    run: str | None = typer.Option(None, "--run", help="Run name or 'latest'. Default: all runs."),
    as_json: bool = _JSON,
    as_csv: bool = _CSV,
    limit: int | None = _LIMIT,
    timeout: float | None = _TIMEOUT,
) -> None:
    """Run a saved query, for example: agentrl db query conservation."""
    from agentrl.cli.table_text import check_format
    from agentrl.store.saved_queries import saved_query

    check_format(as_json, as_csv)
    of_one = "trajectory" in saved_query(name).parameters
    if of_one and trajectory is None:
        raise UsageError(f"Query {name!r} is about one trajectory: agentrl db query {name} ID, or latest for the newest.")
    if not of_one and trajectory is not None:
        raise UsageError(f"Query {name!r} is not about one trajectory. For one run: agentrl db query {name} --run NAME.")
    with reader_session(timeout) as reader:
        parameters: dict[str, str] = {}
        if trajectory is not None:
            parameters["trajectory"] = str(require_trajectory(reader, trajectory, run or "latest"))
        elif run is not None:
            parameters["run"] = require_run(reader, run).spec.name
        answer = reader.saved(name, limit, **parameters)
    _print(answer, as_json, as_csv)


@app.command("sql")
def sql(
    statement: str = typer.Argument(
        ..., help="One statement; a dash reads it from stdin. Tables need no 'agentrl.' before them."
    ),
    as_json: bool = _JSON,
    as_csv: bool = _CSV,
    limit: int | None = _LIMIT,
    timeout: float | None = _TIMEOUT,
) -> None:
    """Run one statement that reads, for example: agentrl db sql "select * from v_runs"."""
    from agentrl.cli.table_text import check_format
    from agentrl.store.reader import LIMIT

    check_format(as_json, as_csv)
    text = sys.stdin.read() if statement == "-" else statement
    with reader_session(timeout) as reader:
        answer = reader.ask(text, limit or LIMIT)
    _print(answer, as_json, as_csv)


def _print(answer: Answer, as_json: bool, as_csv: bool) -> None:
    from agentrl.cli.table_text import print_result

    print_result(answer.result, as_json=as_json, as_csv=as_csv)
    if answer.cut_at is not None:
        sys.stdout.flush()
        print(
            f"agentrl: only the first {answer.cut_at} rows are shown, the row limit; --limit N shows more.",
            file=sys.stderr,
        )


@app.command("queries")
def queries(as_json: bool = _JSON) -> None:
    """List the saved queries with their purpose."""
    from rich.console import Console
    from rich.table import Table

    from agentrl.store.saved_queries import saved_queries

    if as_json:
        for saved in saved_queries().values():
            print(json.dumps({"name": saved.name, "purpose": saved.purpose}))
        return
    table = Table("name", "purpose")
    for saved in saved_queries().values():
        table.add_row(saved.name, saved.purpose)
    Console(width=None if Console().is_terminal else 160).print(table)


@app.command("status")
def status(as_json: bool = typer.Option(False, "--json", help="One JSON object.")) -> None:
    """The schema's revision and the migrations that are pending."""
    from agentrl.store.postgres_connection import parse_url
    from agentrl.store.schema_migration import schema_status

    with database_session() as url:
        found = schema_status(parse_url(url)[0])
    if as_json:
        print(json.dumps({"revision": found.found, "pending": list(found.pending)}))
        return
    print(f"revision  {found.found or 'none: the first command that needs the store creates the schema'}")
    print(f"pending   {', '.join(found.pending) or 'nothing'}")
    if found.lacks:
        print(f"lacks     {', '.join(found.lacks)}: another state of the code made it, and no migration leads from there")


@app.command("migrate")
def migrate_schema(
    phase: str | None = typer.Option(
        None, "--phase", help="pre: only add, while processes of the release before run; post: remove. Default: both."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be applied; change nothing."),
) -> None:
    """Bring the schema to this release, for example: agentrl db migrate --phase pre."""
    from agentrl.store.postgres_connection import parse_url
    from agentrl.store.schema_migration import PHASES, migrate, schema_status

    if phase not in (None, *PHASES):
        raise UsageError(f"There is no phase {phase!r}: use pre or post, or leave it out for both.")
    with database_session() as named:
        url, _ = parse_url(named)
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


app.command("show")(show)
app.command("shell")(shell)
archive_commands.add_to(app)
app.command("vacuum")(vacuum_store)
app.command("reuse")(reuse)
