"""The pages about runs and their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrl.store.contract import RunRow
from agentrl.view.asking import Asked
from agentrl.view.charts import Chart, chart
from agentrl.view.page import NotFound, Page

MOST_RUNS, MOST_STEPS, MOST_MEMBERS = 200, 2000, 1000


def runs(asked: Asked) -> Page:
    """All runs, newest first."""
    rows = asked.rows("select * from v_runs order by created_at desc limit {limit}", MOST_RUNS)
    return Page("runs.html.jinja", "Runs", {"runs": rows}, {"most": MOST_RUNS})


def run(asked: Asked, row: RunRow) -> Page:
    """Where a run stands: its books, its alerts and scores, its steps as charts, what it waits for and what it dropped."""
    (now,) = asked.rows("select * from v_runs where run = {run} limit {limit}", 1, run=row.id)
    (books,) = asked.rows("select * from v_conservation where run = {run} limit {limit}", 1, run=row.id)
    steps = asked.rows(
        """
        select s.step, s.n_trajectories, s.metrics, l.mean_lag, t.wait_share, t.since_last_s
        from (select * from step where run = {run} and abandoned_by is null order by step desc limit {limit}) s
        left join v_staleness l on l.run = {run} and l.step = s.step
        left join v_step_timing t on t.run = {run} and t.step = s.step
        order by s.step
        """,
        MOST_STEPS,
        run=row.id,
    )
    alerts = asked.rows(
        """
        select alert, severity, active, first_step, last_step, steps, value, bound, what
        from alerts_since({run}, {after}) order by active desc, severity, last_step desc, alert limit {limit}
        """,
        50,
        run=row.id,
        after=row.step - MOST_STEPS // 2,
    )
    scores = asked.rows(
        """
        select step, version, split, n, graded, successes::float8 / nullif(graded, 0) as success, mean_reward, finished
        from evaluation_score where run = {run} order by evaluation desc limit {limit}
        """,
        100,
        run=row.id,
    )
    dropped = asked.rows(
        "select * from v_dropped_by_reason where run = {run} order by trajectories desc limit {limit}", 50, run=row.id
    )
    endings = asked.rows(
        "select * from v_stop_reasons where run = {run} order by trajectories desc limit {limit}", 50, run=row.id
    )
    waiting = asked.rows(
        """
        select place, why, count(*) as trajectories, max(waiting_s) as longest_s, bool_or(lapsed) as lapsed
        from v_stuck where run = {run} group by place, why order by longest_s desc limit {limit}
        """,
        20,
        run=row.id,
    )
    data = {
        "run": now, "conservation": books, "alerts": alerts, "evaluations": scores, "dropped": dropped, "endings": endings,
        "waiting": waiting, "steps": steps,
    }  # fmt: skip
    return Page("run.html.jinja", row.spec.name, data, {"charts": _charts(steps), "live": row.status == "running"})


_CHARTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "reward": lambda step: step["metrics"].get("reward_mean"),
    "success": lambda step: step["metrics"].get("success"),
    "action tokens of a trajectory": lambda step: _ratio(step["metrics"].get("action_tokens"), step["n_trajectories"]),
    "turns": lambda step: step["metrics"].get("turns_mean"),
    "lag": lambda step: step["mean_lag"],
    "tokens kept by the loss": lambda step: step["metrics"].get("kept_fraction"),
    "KL to the sampler (k3)": lambda step: step["metrics"].get("kl_k3"),
    "entropy": lambda step: step["metrics"].get("entropy"),
    "explained variance": lambda step: step["metrics"].get("explained_variance"),
    "policy gradient norm": lambda step: step["metrics"].get("policy_grad_norm"),
    "share of the step that the trainer waits": lambda step: step["wait_share"],
    "seconds between steps": lambda step: step["since_last_s"],
}


def _charts(steps: list[dict[str, Any]]) -> list[Chart]:
    numbers = [step["step"] for step in steps]
    drawn = (chart(title, numbers, [_number(value(step)) for step in steps]) for title, value in _CHARTS.items())
    return [one for one in drawn if one is not None]


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def _ratio(number: Any, of: int) -> float | None:
    whole = _number(number)
    return None if whole is None else whole / max(1, of)


def step(asked: Asked, row: RunRow, number: int) -> Page:
    """What a step of the live history trained on, and its numbers. `NotFound` without such a step."""
    found = asked.rows(
        "select * from step where run = {run} and step = {step} and abandoned_by is null limit {limit}",
        1,
        run=row.id,
        step=number,
    )
    if not found:
        raise NotFound(f"Run {row.spec.name} has no step {number} on its live history; it stands at step {row.step}.")
    members = asked.rows(
        """
        select c.trajectory, t.run_name, t.task_id, t.grp, t.reward, t.segments, t.actions, c.lag, c.masked_tokens
        from consumed c
        left join v_trajectories t on t.run = coalesce(c.source, c.run) and t.trajectory = c.trajectory
        where c.run = {run} and c.step = {step} and c.abandoned_by is null
        order by t.grp, c.trajectory limit {limit}
        """,
        MOST_MEMBERS,
        run=row.id,
        step=number,
    )
    return Page(
        "step.html.jinja",
        f"{row.spec.name}: step {number}",
        {"step": found[0], "trajectories": members},
        {"run": row, "most": MOST_MEMBERS},
    )
