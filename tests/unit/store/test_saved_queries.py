"""Saved queries as files: name line, purpose, parameters."""

from __future__ import annotations

import pytest

from agentrl.errors import UsageError
from agentrl.store.saved_queries import SavedQuery, bind, saved_queries, saved_query

EXPECTED = {
    "conservation", "staleness", "reward_by_task", "stuck", "dropped_by_reason", "timeline", "versions", "evaluations", "steps",
}  # fmt: skip


def test_saved_queries__each_has_a_purpose_of_one_sentence() -> None:
    assert set(saved_queries()) >= EXPECTED
    for query in saved_queries().values():
        assert query.purpose.endswith(".")
        assert query.purpose[0].isupper()
        assert set(query.parameters) <= {"run", "trajectory", "limit"}
        assert not query.sql.rstrip().endswith(";")


def test_unknown_query__nearest_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'staleness'"):
        saved_query("stalness")
    with pytest.raises(UsageError, match="conservation"):
        saved_query("zzzzzz")


def test_bind__placeholders_casts_and_percent_signs() -> None:
    query = SavedQuery("q", "p", ("run",), "select 5 % 2, ':x'::text, :run::text where :run is null")
    statement, values = bind(query, {"run": 3})
    assert statement.startswith("select 5 %% 2")
    assert statement.count("%(run)s") == 2
    assert "::text" in statement
    assert values["run"] == "3"


def test_bind__missing_and_foreign_parameters() -> None:
    assert bind(saved_query("steps"), {})[1] == {"run": None}
    with pytest.raises(UsageError, match="needs the parameter 'trajectory'"):
        bind(saved_query("timeline"), {})
    with pytest.raises(UsageError, match="no parameter 'rnu'; did you mean 'run'"):
        bind(saved_query("steps"), {"rnu": 1})


def test_bind__limit_by_default_and_given() -> None:
    query = saved_query("reward_by_task")
    assert bind(query, {})[1] == {"run": None, "limit": "200"}
    assert bind(query, {"limit": 3})[1]["limit"] == "3"
    assert all((q.limit is not None) == ("limit" in q.parameters) for q in saved_queries().values())
