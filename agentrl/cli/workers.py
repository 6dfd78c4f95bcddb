"""The processes of a run: ``agentrl trainer`` and ``agentrl rollout``. `agentrl train` starts them; they run anywhere that
reaches the database and the run's folder."""

from __future__ import annotations

import os
import sys

import typer

from agentrl.launch.processes import die_with_parent


def trainer(run: str = typer.Option(..., "--run", help="Run name.")) -> None:
    """Train one run until its target; resumes from the newest checkpoint."""
    _follow_parent()
    from agentrl.cli.session import require_run, store_session
    from agentrl.trainer.main import run_trainer

    with store_session() as session:
        sys.exit(run_trainer(session.store, require_run(session.store, run)))


def rollout(
    run: str = typer.Option(..., "--run", help="Run name."),
    worker: str = typer.Option("0", "--worker", help="Name of this worker on this host."),
    evaluate: bool = typer.Option(False, "--evaluate", help="Serve evaluations instead of training episodes."),
) -> None:
    """Run episodes of one run until told to stop."""
    _follow_parent()
    from agentrl.cli.session import require_run, store_session
    from agentrl.rollout.main import run_rollout

    with store_session() as session:
        sys.exit(run_rollout(session.store, require_run(session.store, run), worker=worker, evaluate=evaluate))


def _follow_parent() -> None:
    parent = os.environ.pop("AGENTRL_PARENT", None)
    if parent is not None:
        die_with_parent(int(parent))
