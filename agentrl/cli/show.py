"""``agentrl show``: one trajectory, turn by turn."""

from __future__ import annotations

import json

import typer

from agentrl.cli.session import reader_session, require_trajectory
from agentrl.errors import UsageError


def show(
    trajectory: str = typer.Argument(..., metavar="ID", help="Trajectory id, or 'latest' for the newest ended one."),
    run: str = typer.Option("latest", "--run", help="Run in which 'latest' looks."),
    tokens: bool = typer.Option(False, "--tokens", help="Also print token ids, log-probs and versions."),
    reasoning: bool = typer.Option(False, "--reasoning", help="Print reasoning in full, not folded."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object; reasoning in full."),
) -> None:
    """Print a trajectory: prompt, turns, tool calls and results, versions, reward, and where it went."""
    from agentrl.cli.trajectory_text import trajectory_lines
    from agentrl.view.trajectory_json import trajectory_record

    with reader_session() as reader:
        identity = require_trajectory(reader, trajectory, run)
        stored = reader.trajectory(identity)
        if stored is None:
            from agentrl.store.retention import removed_by_retention

            removed = removed_by_retention(reader, identity)
            if removed is not None:
                raise UsageError(f"{removed} `agentrl db query timeline {identity}` shows its moves and verdicts.")
            raise UsageError(
                f"There is no trajectory {identity} in this store. `agentrl show latest --run NAME` prints the newest of a run."
            )
        events = reader.query("timeline", trajectory=identity).records()
    if as_json:
        print(json.dumps(trajectory_record(stored, events, tokens=tokens)))
        return
    for line in trajectory_lines(stored, events, tokens=tokens, reasoning=reasoning):
        print(line)
