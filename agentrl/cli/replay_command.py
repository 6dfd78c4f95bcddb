"""``agentrl replay``: what a run has stored, checked."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import typer

from agentrl.cli.session import reader_session, require_run

if TYPE_CHECKING:
    from agentrl.replay.stored_run import StoredRun

app = typer.Typer(help="Check what a run has stored.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@app.command("check")
def check(
    run: str = typer.Argument("latest", metavar="RUN", help="Run name or 'latest'."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Only the newest N trajectories. Default: all."),
    tolerance: float | None = typer.Option(
        None, "--tolerance", min=0.0, help="Largest difference of a log-prob. Default: 1e-4, for an engine in float32."
    ),
) -> None:
    """Re-render and re-score stored trajectories; ends with code 1 at the first row that lies and names it.

    Example: agentrl replay check latest --limit 200
    """
    with reader_session() as reader:
        found = require_run(reader, run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # announcements of kernels that a CPU does not have
            from agentrl.replay.stored_run import StoredRun

        stored = StoredRun(reader, found, tolerance=tolerance)
        stored.check_all(limit)
    _print(found.spec.name, stored)


def _print(name: str, stored: StoredRun) -> None:
    report, rescorer = stored.check.report, stored.rescorer
    lines = {
        "run": name,
        "checked": f"{report.trajectories} trajectories, {report.segments} segments, {report.actions} action tokens",
        "prefixes": f"{report.rendered} segments written again, the same ids",
        "rewards": f"{report.verdicts} verdicts, {report.turn_rewards} rewards of single turns",
        "ledger": f"{report.recredited} trained trajectories have the advantages that their rewards give",
        "log-probs": f"{rescorer.tokens} tokens re-scored with the weights of version {_span(rescorer.versions)}, "
        f"largest difference {rescorer.largest:.1e}",
    }
    if report.contexts > report.trajectories:
        lines["contexts"] = f"{report.contexts}: in some trajectories the history was rewritten"
    if report.unrendered:
        lines["not rendered"] = f"{report.unrendered} segments: another version of the environment, or a client of its own"
    if rescorer.gone:
        lines["not scored"] = f"{rescorer.skipped} tokens of version {_span(rescorer.gone)}: the weights are gone"
    width = max(map(len, lines))
    for subject, text in lines.items():
        print(f"  {subject:<{width}}  {text}")
    print("No lie was found.")


def _span(versions: set[int]) -> str:
    if len(versions) <= 1:
        return "".join(map(str, versions)) or "none"
    return f"{min(versions)} to {max(versions)}"
