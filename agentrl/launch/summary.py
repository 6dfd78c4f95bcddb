"""What a run prints at its end: score before and after, lags, drops, alerts, the conservation check and the next commands."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.stored import from_row
from agentrl.launch import alerts
from agentrl.launch.drops import dropped, said
from agentrl.launch.freshness import refresh_proposal
from agentrl.monitor.terminal import say
from agentrl.store.contract import EvaluationResult, RunRow, TrajectoryStore
from agentrl.types import Termination

MOST_ERRORS = 3


def print_summary(store: TrajectoryStore, run: RunRow, folder: Path, status: str, seconds: float) -> None:
    """Print to stdout; every number comes from the store."""
    name = run.spec.name
    row = store.find_run(name) or run
    say(f"\nRun {name} {status} after {row.step} steps ({row.updates} policy updates), {seconds:.0f} s")
    results = store.evaluation_results(run.id)
    if results:
        say(f"  held-out success  {_score(results[0])}" + (f"  ->  {_score(results[-1])}" if len(results) > 1 else ""))
    lags = [row for row in store.query("staleness", run=name).records() if row["step"] is None]
    shares = ", ".join(f"{row['lag']}: {row['share']:.0%}" for row in lags) or "none"
    say(f"  trained trajectories by lag of their oldest token  {shares}  (bound {run.spec.lag_bound})")
    if drops := dropped(store, name):
        say(f"  dropped  {said(drops)}")
    if refresh := refresh_proposal(from_row(run.spec.config)[0], store, name):
        say(f"  weights  {refresh}")
    for alert in alerts.fired(store, name):
        say(f"  {alerts.said(alert)}")
    _print_errors(store, name)
    check = store.conservation(run.id)
    places = ", ".join(f"{place.value} {count}" for place, count in check.places.items() if count)
    verdict = "OK" if check.holds else "NOT OK"
    say(f"  conservation {verdict}: created {check.created} = {places or '0'}; evaluated {check.evaluated}")
    say(f"  files  {folder}")
    if status != "finished":
        say(f"  continue with  agentrl train --resume {name}")
    if row.updates:
        say(f"  keep  agentrl export {name} FOLDER")
    say(f"  ask   agentrl db query staleness --run {name}   |   agentrl db query reward_by_task --run {name}")
    say(f"  look  agentrl show latest --run {name}")


def _print_errors(store: TrajectoryStore, name: str) -> None:
    """What episodes failed of; those that a stop cut off are no failures."""
    failures = [row for row in store.query("episode_errors", run=name).records() if row["termination"] != Termination.ABORTED]
    for row in failures[:MOST_ERRORS]:
        say(f"  {row['episodes']} {row['purpose']} episodes of {row['tasks']} tasks failed: {row['error']:.500}")
    if len(failures) > MOST_ERRORS:
        say(f"  and {len(failures) - MOST_ERRORS} other kinds: agentrl db query episode_errors --run {name}")


def _score(result: EvaluationResult) -> str:
    e = result.evaluation
    if not result.graded:
        return f"none of {e.n} graded (version {e.version})"
    n = str(e.n) if result.graded == e.n else f"{result.graded} graded of {e.n}"
    return f"{result.successes / result.graded:.3f} (version {e.version}, n={n}, mean reward {result.mean_reward:.3f})"
