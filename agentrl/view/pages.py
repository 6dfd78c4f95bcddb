"""The pages about runs, groups and steps, as data: what a template shows and what JSON at the same address gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import UsageError
from agentrl.store.contract import RunRow
from agentrl.store.saved_queries import saved_queries, saved_query
from agentrl.view.asking import Asked
from agentrl.view.charts import Chart, chart
from agentrl.view.listing import MOST_COUNTED, PAGE, Listing, counts_of, page_of

MOST_RUNS, MOST_STEPS, MOST_GROUPS = 200, 2000, 200


class NotFound(UsageError):
    """No row has the name or id of the address."""


@dataclass(frozen=True, slots=True)
class Page:
    """``data`` is given as JSON too; ``extra`` only to the template."""

    template: str
    title: str
    data: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)


def runs(asked: Asked) -> Page:
    """All runs, newest first."""
    rows = asked.rows("select * from v_runs order by created_at desc limit 200", MOST_RUNS)
    return Page("runs.html.jinja", "Runs", {"runs": rows})


def run(asked: Asked, row: RunRow) -> Page:
    """Where a run stands: its books, its scores, its steps as charts, what it waits for and what it dropped."""
    (now,) = asked.rows("select * from v_runs where run = {run}", 1, run=row.id)
    (books,) = asked.rows("select * from v_conservation where run = {run}", 1, run=row.id)
    steps = asked.rows(
        """
        select s.step, s.metrics, l.mean_lag, t.wait_share, t.since_last_s
        from (select * from step where run = {run} and abandoned_by is null order by step desc limit 2000) s
        left join v_staleness l on l.run = s.run and l.step = s.step
        left join v_step_timing t on t.run = s.run and t.step = s.step
        order by s.step
        """,
        MOST_STEPS,
        run=row.id,
    )
    scores = asked.rows(
        """
        select step, version, split, n, graded, successes::float8 / nullif(graded, 0) as success, mean_reward, finished
        from evaluation_score where run = {run} order by evaluation desc limit 100
        """,
        100,
        run=row.id,
    )
    dropped = asked.rows(
        "select * from v_dropped_by_reason where run = {run} order by trajectories desc limit 50", 50, run=row.id
    )
    endings = asked.rows("select * from v_stop_reasons where run = {run} order by trajectories desc limit 50", 50, run=row.id)
    waiting = asked.rows(
        """
        select place, why, count(*) as trajectories, max(waiting_s) as longest_s, bool_or(lapsed) as lapsed
        from v_stuck where run = {run} group by place, why order by longest_s desc limit 20
        """,
        20,
        run=row.id,
    )
    data = {
        "run": now, "conservation": books, "evaluations": scores, "dropped": dropped, "endings": endings, "waiting": waiting,
        "steps": steps,
    }  # fmt: skip
    return Page("run.html.jinja", row.spec.name, data, {"charts": _charts(steps), "live": row.status == "running"})


_CHARTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "reward": lambda step: step["metrics"].get("reward_mean"),
    "success": lambda step: step["metrics"].get("success"),
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
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def trajectories(asked: Asked, row: RunRow, parameters: Mapping[str, str]) -> Page:
    """The list, see `agentrl.view.listing`."""
    listing = Listing.of(row.id, row.spec.name, parameters)
    if listing.until is None:
        newest = asked.rows(
            "select trajectory from v_trajectories where run = {run} order by trajectory desc limit 1", 1, run=row.id
        )
        pinned = Listing.of(row.id, row.spec.name, {**parameters, "until": str(newest[0]["trajectory"])}) if newest else listing
    else:
        pinned = listing
    rows = page_of(asked, pinned)
    total, counts = counts_of(asked, pinned)
    data = {"run": row.spec.name, "trajectories": rows, "total": total, "counts": counts, "until": pinned.until}
    return Page(
        "trajectories.html.jinja",
        f"{row.spec.name}: trajectories",
        data,
        {"listing": pinned, "page_size": PAGE, "most_counted": MOST_COUNTED},
    )


def newer(asked: Asked, row: RunRow, parameters: Mapping[str, str]) -> int:
    """How many trajectories came after the newest one that a list may show, at most a thousand."""
    listing = Listing.of(row.id, row.spec.name, parameters)
    if listing.until is None:
        return 0
    (found,) = asked.rows(
        """
        select count(*) as n
        from (select from v_trajectories where run = {run} and trajectory > {until}::uuid limit 1000) x
        """,
        1,
        run=row.id,
        until=listing.until,
    )
    return int(found["n"])


def step(asked: Asked, row: RunRow, number: int) -> Page:
    """What a step of the live history trained on, and its numbers. `NotFound` without such a step."""
    found = asked.rows(
        "select * from step where run = {run} and step = {step} and abandoned_by is null", 1, run=row.id, step=number
    )
    if not found:
        raise NotFound(f"Run {row.spec.name} has no step {number} on its live history; it stands at step {row.step}.")
    members = asked.rows(
        """
        select c.trajectory, t.run_name, t.task_id, t.grp, t.reward, t.segments, t.actions, c.lag, c.masked_tokens
        from consumed c
        join v_trajectories t on t.run = coalesce(c.source, c.run) and t.trajectory = c.trajectory
        where c.run = {run} and c.step = {step} and c.abandoned_by is null
        order by t.grp, c.trajectory limit 1000
        """,
        1000,
        run=row.id,
        step=number,
    )
    return Page("step.html.jinja", f"{row.spec.name}: step {number}", {"step": found[0], "trajectories": members}, {"run": row})


def groups(asked: Asked, row: RunRow) -> Page:
    """The newest groups of a run."""
    rows = asked.rows(
        "select * from v_groups where run = {run} order by created_at desc, grp limit 200", MOST_GROUPS, run=row.id
    )
    return Page("groups.html.jinja", f"{row.spec.name}: groups", {"run": row.spec.name, "groups": rows})


def group(asked: Asked, identity: str) -> Page:
    """A group's members side by side. `NotFound` without one."""
    found = asked.rows("select * from v_groups where grp = {group}::uuid limit 1", 1, group=identity)
    if not found:
        raise NotFound(f"There is no group {identity} in this store.")
    members = asked.rows(
        """
        select t.*, (select avg(x)::float8 from trained d, unnest(f4(d.advantages)) x
                     where d.run = t.run and d.trajectory = t.trajectory and d.step = t.step) as mean_advantage
        from v_trajectories t where t.run = {run} and t.grp = {group}::uuid
        order by t.seat, t.attempt limit 1000
        """,
        1000,
        run=found[0]["run"],
        group=identity,
    )
    return Page("group.html.jinja", f"group of {found[0]['task_id']}", {"group": found[0], "trajectories": members})


def queries() -> Page:
    """The saved queries."""
    listed = [{"name": q.name, "purpose": q.purpose, "sql": q.sql} for q in saved_queries().values()]
    return Page("queries.html.jinja", "Saved queries", {"queries": listed})


def query(asked: Asked, name: str, parameters: Mapping[str, str]) -> Page:
    """What a saved query answers, with its parameters from the address. `NotFound` without such a query."""
    if name not in saved_queries():
        raise NotFound(f"There is no saved query {name!r}: {', '.join(saved_queries())}")
    saved = saved_query(name)
    given: dict[str, Any] = {key: value for key, value in parameters.items() if value and key != "limit"}
    limit = parameters.get("limit") or None
    if limit is not None and not re.fullmatch("[1-9][0-9]{0,4}", limit):
        raise UsageError(f"limit={limit} is no number of rows, from 1 to 99999")
    missing = "trajectory" in saved.parameters and "trajectory" not in given
    answer = None if missing else asked.reader.saved(name, int(limit) if limit else None, **given)
    data = {"name": name, "purpose": saved.purpose, "rows": answer.result.records() if answer else []}
    extra = {"answer": answer, "parameters": saved.parameters, "given": given, "sql": saved.sql}
    return Page("query.html.jinja", name, data, extra)
