"""``agentrl db reuse``: train a run on trajectories that another run collected."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import typer

from agentrl.cli.session import MOST, require_run, store_session
from agentrl.errors import UsageError
from agentrl.monitor.terminal import visible


def reuse(
    source: str = typer.Option(..., "--from", help="Run that collected the trajectories, or 'latest'; it is left as it is."),
    run: str = typer.Option(..., "--into", help="Run that will train on them; it must have no lag bound."),
    limit: int | None = typer.Option(
        None, "--limit", min=1, max=MOST, help="Most trajectories, or groups where the run has groups."
    ),
    min_reward: float | None = typer.Option(None, "--min-reward", help="Least reward."),
    max_reward: float | None = typer.Option(None, "--max-reward", help="Greatest reward."),
    success: bool | None = typer.Option(None, "--success/--no-success", help="Only successes, or only failures."),
    first_step: int | None = typer.Option(
        None, "--first-step", min=1, max=MOST, help="Trained by this step of their run or later."
    ),
    last_step: int | None = typer.Option(
        None, "--last-step", min=1, max=MOST, help="Trained by this step of their run or earlier."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Make trajectories of one run ready for another, each once: agentrl db reuse --from RUN --into RUN --success."""
    from agentrl.store.contract import ImportFilter

    for name, value in (("--min-reward", min_reward), ("--max-reward", max_reward)):
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{name} must be a finite number, got {value}.")
    for name, low, high in (("reward", min_reward, max_reward), ("step", first_step, last_step)):
        if low is not None and high is not None and low > high:
            raise UsageError(f"No {name} is at least {low} and at most {high}: exchange the two.")
    which = ImportFilter(limit, min_reward, max_reward, success, first_step, last_step)
    with store_session() as session:
        origin, into = require_run(session.store, source), require_run(session.store, run)
        taken = session.store.import_trajectories(into.id, origin.id, which)
    if as_json:
        print(json.dumps({"from": origin.spec.name, "into": into.spec.name, **asdict(taken)}))
        return
    print(
        f"run {visible(into.spec.name)} may now train on {taken.trajectories:,} trajectories ({taken.items:,} items) of run "
        f"{visible(origin.spec.name)}" + ("" if taken.items else ": nothing there fits, or all of it was taken before")
    )
