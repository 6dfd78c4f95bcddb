"""``agentrl view``: the store in a browser."""

from __future__ import annotations

import typer

from agentrl.cli.session import reader_session

CONNECTIONS = 4
"""Pages that ask the store at a time."""


def view(
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; there is no authentication."),
    port: int = typer.Option(8090, "--port", min=0, max=65_535, help="Port to listen on; 0 takes a free one."),
    timeout: float = typer.Option(30.0, "--timeout", min=0.001, max=1e6, help="Seconds that a statement may take."),
) -> None:
    """Show runs, groups, trajectories and tokens in a browser; it only reads. Works while a run trains and after it."""
    from agentrl.view.server import serve

    with reader_session(timeout, CONNECTIONS) as reader:
        serve(reader, host, port)
