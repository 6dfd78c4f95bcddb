"""``agentrl db vacuum``: forget what retention left of trajectories that are long gone."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import timedelta

import typer

from agentrl.cli.session import require_run, store_session
from agentrl.errors import UsageError
from agentrl.monitor.terminal import visible

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST = timedelta(days=1000 * 365)
_AGE = re.compile(r"(\d{1,6})([smhdw])")


def age(text: str) -> timedelta:
    """An age as people write it: 90m, 12h, 30d, 8w. `UsageError` for anything else."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--older-than {visible(text)} is no age: use a number and a unit (s, m, h, d or w), for example 12h or 30d."
        )
    limit = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if limit > _LONGEST:
        raise UsageError(f"--older-than {visible(text)} is more than {_LONGEST.days // 365} years: nothing is that old.")
    return limit


def vacuum_store(
    older_than: str = typer.Option(..., "--older-than", metavar="AGE", help="Such as 12h, 30d or 8w."),
    run: str | None = typer.Option(None, "--run", help="Run name or 'latest'. Default: all runs."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be deleted; change nothing."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a run."),
) -> None:
    """Delete moves and verdicts of trajectories that retention removed that long ago.

    For example: agentrl db vacuum --older-than 30d --dry-run
    """
    from agentrl.store.vacuum import vacuum

    limit = age(older_than)
    with store_session() as session:
        if run is not None:
            row = require_run(session.store, run)
            runs = [(row.id, row.spec.name)]
        else:
            runs = [(number, name) for number, name in session.store.rows("select id, name from agentrl.run order by id")]
        total = 0
        for number, name in runs:
            done = vacuum(session.store, number, limit, dry_run)
            total += done.total
            if as_json:
                print(json.dumps({"run": name, "dry_run": dry_run, **asdict(done)}))
            elif done.total or run is not None:
                counts = ", ".join(f"{n:,} {what}" for what, n in asdict(done).items())
                print(f"{'would delete' if dry_run else 'deleted'} of run {visible(name)}: {counts}")
    if run is None and not total and not as_json:
        print("nothing that retention removed is that old" if runs else "there is no run yet: nothing to delete")
