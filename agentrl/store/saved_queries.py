"""Saved queries: one file each in `queries/`, with a name line, a one-sentence purpose and `:name` parameters.

A parameter that is not given is NULL. ``run`` may be a run's id or name, or ``latest``; without it a query spans all runs.
``limit`` is the most rows; its default stands in a third line of the file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from agentrl.errors import UsageError

_HEADER = re.compile(r"\A-- name: (?P<name>\w+)\n-- (?P<purpose>[^\n]+)\n(?:-- limit: (?P<limit>\d+)\n)?(?P<body>.+)\Z", re.S)
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)\b")
_REQUIRED = {"trajectory"}


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """A query by its file: name, purpose, parameters, SQL and, when it has the parameter ``limit``, its default."""

    name: str
    purpose: str
    parameters: tuple[str, ...]
    sql: str
    limit: int | None = None


@cache
def saved_queries() -> Mapping[str, SavedQuery]:
    """All saved queries by name."""
    folder = files("agentrl.store") / "queries"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        header = _HEADER.match(file.read_text(encoding="utf-8"))
        if header is None or header["name"] != file.name.removesuffix(".sql"):
            raise UsageError(f"{file.name} must open with '-- name: {file.name.removesuffix('.sql')}' and a line of purpose")
        parameters = tuple(dict.fromkeys(_PARAMETER.findall(header["body"])))
        body = header["body"].strip().rstrip(";")
        limit = None if header["limit"] is None else int(header["limit"])
        found[header["name"]] = SavedQuery(header["name"], header["purpose"], parameters, body, limit)
    return found


def saved_query(name: str) -> SavedQuery:
    """By name; `UsageError` names the nearest one."""
    known = saved_queries()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.4)
        raise UsageError(f"There is no query {name!r}" + (f"; did you mean {near[0]!r}?" if near else f": {', '.join(known)}"))
    return known[name]


def bind(query: SavedQuery, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The statement with psycopg placeholders and its values; parameters that the query does not have are refused."""
    for name in parameters:
        if name not in query.parameters:
            near = difflib.get_close_matches(name, query.parameters, 1, 0.4)
            hint = f"; did you mean {near[0]!r}?" if near else f" (it has: {', '.join(query.parameters) or 'none'})"
            raise UsageError(f"Query {query.name!r} has no parameter {name!r}{hint}")
    missing = [p for p in query.parameters if p in _REQUIRED and parameters.get(p) is None]
    if missing:
        raise UsageError(f"Query {query.name!r} needs the parameter {missing[0]!r}")
    given = {"limit": query.limit, **parameters}
    values = {p: None if given.get(p) is None else str(given[p]) for p in query.parameters}
    return _PARAMETER.sub(r"%(\1)s", query.sql.replace("%", "%%")), values
