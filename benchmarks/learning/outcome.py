"""What came of a run, by SQL from the store."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
from psycopg.rows import dict_row

STRETCHES = 5
"""Equal parts of a run whose means are kept."""
CURVES = {"reward": "reward_mean", "advantage_variance": "advantage_std", "entropy": "entropy", "kept": "kept_fraction"}
"""Name of a curve -> metric of the step."""

_RUN = "(select id from agentrl.run where name = %(run)s)"
_STEPS = f"""
select s.step, s.at, s.metrics from agentrl.step s where s.run = {_RUN} and s.abandoned_by is null order by s.step"""
_BEGIN = f"select min(staged_at) as at from agentrl.policy_version where run = {_RUN}"
_SCORES = f"""
select successes::float8 / nullif(graded, 0) as success from agentrl.evaluation_score where run = {_RUN} order by evaluation"""
_LAGS = f"""
select count(*) as trajectories, avg(lag)::float8 as mean, max(lag) as max from agentrl.consumed
where run = {_RUN} and abandoned_by is null"""
_DROPS = f"""
select reason, count(*) as n from agentrl.dropped where run = {_RUN} and purpose = 'train'
group by reason order by n desc, reason"""


def read_outcome(url: str, run: str) -> dict[str, Any]:
    """Numbers of a finished run as JSON: held-out scores, seconds from the first weights to the last step, lags, drops, curves.

    A metric that no step has is absent from ``curves``.
    """
    with psycopg.connect(url, row_factory=dict_row) as connection:

        def ask(statement: str) -> list[dict[str, Any]]:
            return connection.execute(statement, {"run": run}).fetchall()

        steps, scores, lags = ask(_STEPS), ask(_SCORES), ask(_LAGS)[0]
        return {
            "steps": len(steps),
            "trajectories": lags["trajectories"],
            "held_out_before": scores[0]["success"],
            "held_out_after": scores[-1]["success"],
            "wall_s": (steps[-1]["at"] - ask(_BEGIN)[0]["at"]).total_seconds(),
            "lag_mean": lags["mean"],
            "lag_max": lags["max"],
            "dropped": {row["reason"]: row["n"] for row in ask(_DROPS)},
            "curves": _curves([step["metrics"] for step in steps]),
        }


def _curves(metrics: list[dict[str, Any]]) -> dict[str, list[float]]:
    curves = {}
    for name, metric in CURVES.items():
        power = 2 if name == "advantage_variance" else 1
        values = [float(step[metric]) ** power for step in metrics if metric in step]
        if values:
            curves[name] = stretches(values)
    return curves


def stretches(values: list[float]) -> list[float]:
    """Means of `STRETCHES` parts of nearly equal length; of fewer when there are fewer values."""
    parts = min(STRETCHES, len(values))
    cuts = [round(i * len(values) / parts) for i in range(parts + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
