"""``agentrl env``: the environments that can be trained."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="List environments.", no_args_is_help=True)


@app.command("list")
def list_environments() -> None:
    """Installed environments by name. Others are named as module:Class or path/to/file.py:Class."""
    from agentrl.environment.registry import installed

    table = Table("name", "class")
    for name, target in sorted(installed().items()):
        table.add_row(name, target)
    Console(width=None if Console().is_terminal else 120).print(table)
