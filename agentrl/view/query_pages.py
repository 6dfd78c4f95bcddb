"""The saved queries as pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentrl.errors import UsageError
from agentrl.store.saved_queries import bind, saved_queries, saved_query
from agentrl.view.asking import Asked, literal
from agentrl.view.page import NotFound, Page, whole_number


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
    limit = whole_number("limit", parameters["limit"]) if parameters.get("limit") else None
    if limit == 0:
        raise UsageError("limit=0 shows no row: leave it out, or name a number from 1 on")
    if "trajectory" in saved.parameters and "trajectory" not in given:
        answer = None
    else:
        answer = asked.reader.saved(name, limit, **given)
        asked.statements.append(_statement(name, given | ({"limit": limit} if limit and "limit" in saved.parameters else {})))
    data = {"name": name, "purpose": saved.purpose, "rows": answer.result.records() if answer else []}
    return Page("query.html.jinja", name, data, {"answer": answer, "parameters": saved.parameters, "given": given})


def _statement(name: str, given: Mapping[str, Any]) -> str:
    """As it ran, with its values in it."""
    statement, values = bind(saved_query(name), given)
    return re.sub(r"%\((\w+)\)s", lambda found: literal(values[found[1]]).as_string(None), statement).replace("%%", "%")
