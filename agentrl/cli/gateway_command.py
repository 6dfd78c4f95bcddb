"""``agentrl gateway``: outside agent programs act in a run through an API that their clients know."""

from __future__ import annotations

from typing import Literal

import typer


def gateway(
    run: str = typer.Option("latest", "--run", help="Run name or 'latest'."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; there is no authentication."),
    port: int = typer.Option(8080, "--port", min=0, max=65_535, help="Port to listen on; 0 takes a free one."),
    idle: float = typer.Option(600.0, "--idle", min=0.1, help="Seconds after which a silent agent program counts as failed."),
    origin: Literal["simulated", "recorded", "live"] = typer.Option(
        "recorded", "--origin", help="Where the traffic comes from; stored with each trajectory."
    ),
) -> None:
    """Serve chat completions of a running run, for example: agentrl gateway --run mine. Its calls become trajectories."""
    from agentrl.cli.session import require_run, store_session
    from agentrl.rollout.gateway_main import run_gateway
    from agentrl.types import Origin

    with store_session() as session:
        found = require_run(session.store, run)
        run_gateway(session.store, found, host=host, port=port, idle_s=idle, origin=Origin(origin))
