"""The processes of a run: ``agentrl trainer``, ``agentrl rollout``, ``agentrl reward``. `agentrl train` starts them; they run
anywhere that reaches the database and the run's folder."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import typer

from agentrl.launch.processes import die_with_parent

if TYPE_CHECKING:
    from agentrl.store.contract import RunRow


def trainer(run: str = typer.Option(..., "--run", help="Run name.")) -> None:
    """Train one run until its target; resumes from the newest checkpoint.

    Starts as many ranks on this machine as trainer.layout asks for. Under torchrun it is one of them.
    """
    follow_parent()
    if int(os.environ.get("RANK", "0")) > 0:
        from agentrl.trainer.main import follow

        sys.exit(follow())
    from agentrl.cli.session import require_run, store_session

    with store_session() as session:
        row = require_run(session.store, run)
        if "RANK" not in os.environ and (ranks := _ranks_of(row)) > 1:
            from agentrl.launch.ranks import run_ranks

            # The session stays open: a private server lasts as long as the ranks need it.
            sys.exit(run_ranks([sys.executable, "-m", "agentrl.cli.main", "trainer", "--run", run], ranks))
        from agentrl.trainer.main import run_trainer

        sys.exit(run_trainer(session.store, row))


def _ranks_of(row: RunRow) -> int:
    from agentrl.config.stored import from_row

    return from_row(row.spec.config)[0].trainer.layout.ranks


def rollout(
    run: str = typer.Option(..., "--run", help="Run name."),
    worker: str = typer.Option("0", "--worker", help="Name of this worker on this host."),
    evaluate: bool = typer.Option(False, "--evaluate", help="Serve evaluations instead of training episodes."),
) -> None:
    """Run episodes of one run until told to stop."""
    follow_parent()
    from agentrl.cli.session import require_run, store_session
    from agentrl.rollout.main import run_rollout

    with store_session() as session:
        sys.exit(run_rollout(session.store, require_run(session.store, run), worker=worker, evaluate=evaluate))


def reward(
    run: str = typer.Option(..., "--run", help="Run name."),
    worker: str = typer.Option("0", "--worker", help="Name of this worker on this host."),
) -> None:
    """Grade the episodes of one run until told to stop."""
    follow_parent()
    from agentrl.cli.session import require_run, store_session
    from agentrl.reward.main import run_reward

    with store_session() as session:
        sys.exit(run_reward(session.store, require_run(session.store, run), worker=worker))


def follow_parent() -> None:
    """End with the process that started this one, if a command of ours did.

    A rank of several must be killed: those above 0 leave a stop to rank 0, which can save nothing without them.
    """
    parent = os.environ.pop("AGENTRL_PARENT", None)
    if parent is not None:
        die_with_parent(int(parent), signal.SIGKILL if "RANK" in os.environ else signal.SIGTERM)
