"""The lists of a run: its trajectories, and its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentrl.store.contract import RunRow
from agentrl.view.asking import Asked
from agentrl.view.listing import MOST_COUNTED, MOST_NEWS, PAGE, Listing, counts_of, newer_than, page_of
from agentrl.view.page import NotFound, Page

MOST_GROUPS = 200


def trajectories(asked: Asked, row: RunRow, parameters: Mapping[str, str]) -> Page:
    """The list, see `agentrl.view.listing`."""
    listing = Listing.of(row.id, row.spec.name, parameters)
    if listing.until is None:
        newest = asked.rows(
            "select trajectory from v_trajectories where run = {run} order by trajectory desc limit {limit}", 1, run=row.id
        )
        listing = replace(listing, until=str(newest[0]["trajectory"])) if newest else listing
    rows = page_of(asked, listing)
    counts = counts_of(asked, listing)
    imported = asked.rows(
        """
        select r.name as run, sum(i.trajectories)::bigint as trajectories
        from import i join run r on r.id = i.source where i.run = {run} group by r.name order by r.name limit {limit}
        """,
        100,
        run=row.id,
    )
    data = {
        "run": row.spec.name, "trajectories": rows, "total": counts.total, "counted_all": counts.all, "counts": counts.of,
        "imported": imported, "until": listing.until, "environment": row.spec.environment,
    }  # fmt: skip
    extra = {"listing": listing, "page_size": PAGE, "most_counted": MOST_COUNTED, "most_news": MOST_NEWS}
    return Page("trajectories.html.jinja", f"{row.spec.name}: trajectories", data, extra, listing.url(page=listing.page))


def newer(asked: Asked, row: RunRow, parameters: Mapping[str, str]) -> int:
    """How many trajectories that the filters let through came after the newest one that the list may show."""
    return newer_than(asked, Listing.of(row.id, row.spec.name, parameters))


def groups(asked: Asked, row: RunRow) -> Page:
    """The newest groups of a run."""
    rows = asked.rows(
        "select * from v_groups where run = {run} order by created_at desc, grp limit {limit}", MOST_GROUPS, run=row.id
    )
    return Page("groups.html.jinja", f"{row.spec.name}: groups", {"run": row.spec.name, "groups": rows})


def group(asked: Asked, identity: str) -> Page:
    """A group's members side by side. `NotFound` without one."""
    found = asked.rows("select * from v_groups where grp = {group}::uuid limit {limit}", 1, group=identity)
    if not found:
        raise NotFound(f"There is no group {identity} in this store.")
    members = asked.rows(
        """
        select t.*, (select avg(x)::float8
                     from trained d
                     join step s on s.run = d.run and s.branch = d.branch and s.step = d.step and s.abandoned_by is null
                     cross join lateral unnest(f4(d.advantages)) x
                     where d.run = t.run and d.trajectory = t.trajectory and d.step = t.step) as mean_advantage
        from v_trajectories t where t.run = {run} and t.grp = {group}::uuid
        order by t.seat, t.attempt limit {limit}
        """,
        1000,
        run=found[0]["run"],
        group=identity,
    )
    return Page("group.html.jinja", f"group of {found[0]['task_id']}", {"group": found[0], "trajectories": members})
