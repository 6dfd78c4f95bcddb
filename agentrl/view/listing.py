"""A list of trajectories by its URL: what is shown, in which order, and how many there are of each kind.

- same_url_same_list: filters, order and page are in the URL, and so is the newest trajectory of the first look: what comes
  later does not move what somebody reads.
- no_silent_filter: a parameter that no filter reads is refused with the nearest name.
- bounded: no statement without a limit; counts are of the newest `MOST_COUNTED`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from agentrl.errors import UsageError
from agentrl.types import DropReason, Outcome, Place, Purpose, Termination
from agentrl.view.asking import Asked, filled

PAGE = 50
MOST_COUNTED = 20_000
MOST_NEWS = 1000
NONE = "none"
"""Chooses what has no value: a trajectory that runs has no termination."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "purpose": tuple(Purpose),
    "place": tuple(Place),
    "termination": (*Termination, NONE),
    "outcome": (*Outcome, NONE),
    "success": ("true", "false", NONE),
    "drop_reason": (*DropReason, NONE),
}
"""Columns that are filtered by one of their values."""

_SAID = """exists (select from segment s where s.run = v_trajectories.run and s.trajectory = v_trajectories.trajectory
              and (strpos(s.action_text, {value}) > 0 or strpos(s.observation_text, {value}) > 0))"""
FIELDS = {
    "task": ("task contains", "strpos(lower(task_id), lower({value})) > 0"),
    "said": ("text of its turns contains", _SAID),
    "error": ("error contains", "strpos(lower(error), lower({value})) > 0"),
    "min_reward": ("reward at least", "reward >= {value}::float8"),
    "max_reward": ("reward at most", "reward <= {value}::float8"),
    "step": ("trained in step", "step = {value}::bigint"),
    "lag": ("lag", "lag = {value}::bigint"),
    "version": ("policy version", "{value}::bigint between first_version and last_version"),
    "group": ("group", "grp = {value}::uuid"),
}
"""Filters that take a word or a number: what they are called, and their condition."""

SORTS = ("trajectory", "task_id", "reward", "segments", "tokens", "actions", "first_version", "step", "lag", "duration_s")
_COLUMNS = """trajectory, purpose, task_id, grp, seat, attempt, place, termination, outcome, reward, success, segments,
  tokens, actions, first_version, last_version, step, lag, drop_reason, error, duration_s, started_at"""


@dataclass(frozen=True, slots=True)
class Listing:
    """``chosen``: filter -> value. ``until``: the newest trajectory that may be shown. ``page`` counts from 1."""

    run: int
    run_name: str
    chosen: Mapping[str, str]
    sort: str = "trajectory"
    descending: bool = True
    page: int = 1
    until: str | None = None

    @classmethod
    def of(cls, run: int, run_name: str, parameters: Mapping[str, str]) -> Listing:
        """From a URL's parameters. `UsageError` for one that means nothing."""
        known = (*CHOICES, *FIELDS, "sort", "order", "page", "until")
        for name in parameters:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"; did you mean {near[0]!r}?" if near else f": {', '.join(known)}"
                raise UsageError(f"There is no filter {name!r}{hint}")
        given = {name: value.strip() for name, value in parameters.items() if value.strip()}
        chosen = {name: given[name] for name in (*CHOICES, *FIELDS) if name in given}
        for name in CHOICES.keys() & chosen.keys():
            _one_of(name, chosen[name], CHOICES[name])
        sort, order = given.get("sort", "trajectory"), given.get("order", "desc")
        _one_of("sort", sort, SORTS)
        _one_of("order", order, ("asc", "desc"))
        page = given.get("page", "1")
        if not re.fullmatch("[1-9][0-9]{0,5}", page):
            raise UsageError(f"page={page} is no page: they are numbered from 1")
        until = given.get("until")
        return cls(run, run_name, chosen, sort, order == "desc", int(page), until and str(_uuid(until)))

    def url(self, page_of_run: str = "trajectories", **changes: Any) -> str:
        """The same list with something changed; a filter that becomes None is taken away. It begins at page 1 unless told."""
        own = {name: changes.pop(name) for name in ("sort", "descending", "page", "until") if name in changes}
        chosen = {name: value for name, value in {**self.chosen, **changes}.items() if value is not None}
        other = replace(self, chosen=chosen, **{"page": 1, **own})
        parameters = dict(other.chosen)
        if other.sort != "trajectory" or not other.descending:
            parameters |= {"sort": other.sort, "order": "desc" if other.descending else "asc"}
        if other.page > 1:
            parameters["page"] = str(other.page)
        if other.until is not None:
            parameters["until"] = other.until
        return f"/runs/{other.run_name}/{page_of_run}" + (f"?{urlencode(parameters)}" if parameters else "")

    def conditions(self, without: Container[str] = ()) -> str:
        """What a trajectory of the list fulfils, but for some filters."""
        conditions = [filled("run = {run}", run=self.run)]
        if self.until is not None:
            conditions.append(filled("trajectory <= {value}", value=self.until))
        return "\n  and ".join([*conditions, *self._chosen(without)])

    def where_chosen(self, without: str | None = None) -> str:
        """The same for the choices alone."""
        conditions = self._chosen({*FIELDS, without})
        return f" where {' and '.join(conditions)}" if conditions else ""

    def _chosen(self, without: Container[str | None]) -> list[str]:
        conditions = []
        for name, value in self.chosen.items():
            if name in without:
                continue
            if name in FIELDS:
                conditions.append(filled(FIELDS[name][1], value=value))
            elif value == NONE:
                conditions.append(f"{name} is null")
            else:
                conditions.append(filled(f"{name} = {{value}}", value=value))
        return conditions


@dataclass(frozen=True, slots=True)
class Counts:
    """Trajectories of a list, and for each choice how many it would have with that choice.

    ``all``: whether all were looked at, or only the newest `MOST_COUNTED` that the fields let through.
    """

    total: int
    all: bool
    of: Mapping[str, Mapping[str, int]]


def page_of(asked: Asked, listing: Listing) -> list[dict[str, Any]]:
    """The rows of the page."""
    direction = "desc" if listing.descending else "asc"
    order = f"trajectory {direction}"  # never NULL, and without a word about it the order of the primary key
    if listing.sort != "trajectory":
        order = f"{listing.sort} {direction} nulls last, trajectory desc"
    return asked.text(
        f"select {_COLUMNS}\nfrom v_trajectories\nwhere {listing.conditions()}\norder by {order}\n"
        f"limit {PAGE} offset {PAGE * (listing.page - 1)}",
        PAGE,
    )


def counts_of(asked: Asked, listing: Listing) -> Counts:
    """How many there are of each kind, in one look at the rows."""
    listed = (
        f"with listed as materialized (\n  select {', '.join(CHOICES)} from v_trajectories\n"
        f"  where {listing.conditions(CHOICES)}\n  order by trajectory desc limit {MOST_COUNTED})\n"
    )
    parts = [
        f"select 'total' as filter, '' as value, count(*) as n from listed{listing.where_chosen()}",
        "select 'looked at', '', count(*) from listed",
        *(
            f"select '{name}', coalesce({name}::text, '{NONE}'), count(*) from listed{listing.where_chosen(name)} group by 2"
            for name in CHOICES
        ),
    ]
    found: dict[str, dict[str, int]] = {}
    for row in asked.text(listed + "\nunion all\n".join(parts), 1000):
        found.setdefault(row["filter"], {})[row["value"]] = row["n"]
    (total,), (looked_at,) = found.pop("total").values(), found.pop("looked at").values()
    return Counts(total, looked_at < MOST_COUNTED, {name: found.get(name, {}) for name in CHOICES})


def newer_than(asked: Asked, listing: Listing) -> int:
    """Trajectories after ``until`` that the filters let through, at most `MOST_NEWS`; without ``until`` all of them."""
    conditions = replace(listing, until=None).conditions()
    if listing.until is not None:
        conditions += filled("\n  and trajectory > {value}", value=listing.until)
    rows = asked.text(f"select count(*) as n\nfrom (select from v_trajectories where {conditions} limit {MOST_NEWS}) x", 1)
    return int(rows[0]["n"])


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        near = difflib.get_close_matches(value, values, 1, 0.5)
        raise UsageError(
            f"{name}={value} is none of its values"
            + (f"; did you mean {str(near[0])!r}?" if near else f": {', '.join(values)}")
        )


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(f"until={text} is not a trajectory id") from None
