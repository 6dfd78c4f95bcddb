"""The gauges of /metrics, read as Prometheus reads them, are what the store's views say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from view_shelf import Shelf, filled_shelf

from agentrl.errors import NotReadyError
from agentrl.store.contract import RunSpec
from agentrl.types import Task


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    """One of its own: the numbers of the shared one change."""
    with filled_shelf() as made:
        yield made


Gauges = dict[str, dict[tuple[str, ...], float]]


def scraped(shelf: Shelf) -> Gauges:
    """Gauge -> label values, in the order of the label names -> number."""
    answer = shelf.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    assert all(family.documentation.endswith(".") and family.type == "gauge" for family in families)
    return {f.name: {tuple(v for _, v in sorted(s.labels.items())): s.value for s in f.samples} for f in families}


def test_gauges__are_those_of_the_views(shelf: Shelf) -> None:
    gauges = scraped(shelf)
    books = shelf.data("/runs/plain")["conservation"]
    places = {place: n for (place, run), n in gauges["agentrl_trajectories"].items() if run == "plain"}
    assert places == {place: books[place] for place in places}
    assert sum(places.values()) == books["created"]
    assert gauges["agentrl_step"]["plain",] == gauges["agentrl_policy_updates"]["plain",] == 3
    assert gauges["agentrl_policy_version"]["plain",] == 3
    assert gauges["agentrl_dropped"]["train", "infrastructure", "plain"] == 1
    assert gauges["agentrl_step_metric"]["loss", "plain"] == 0.5
    assert gauges["agentrl_step_age_seconds"]["plain",] >= 0
    assert gauges["agentrl_workers"]["trainer", "plain"] == 1
    assert gauges["agentrl_alert"] == {("failed", "plain", "warning"): 1}
    assert gauges["agentrl_runs"][("running",)] == len(gauges["agentrl_step"])


def test_run_that_has_ended__is_only_counted(shelf: Shelf) -> None:
    before = scraped(shelf)
    shelf.store.set_run_status(shelf.grouped.run, "finished")
    try:
        gauges = scraped(shelf)
    finally:
        shelf.store.set_run_status(shelf.grouped.run, "running")
    told = {value for name, samples in gauges.items() if name != "agentrl_runs" for labels in samples for value in labels}
    assert "plain" in told
    assert "grouped" not in told
    assert gauges["agentrl_runs"]["finished",] == 1
    assert gauges["agentrl_runs"]["running",] == before["agentrl_runs"]["running",] - 1


def test_name_with_any_character__is_a_label(shelf: Shelf) -> None:
    name = 'a"b\\c\nd {e="f"} é'
    spec = RunSpec(name, "toy", {}, "h", 1, 1, 2, 2)
    run = shelf.store.create_run(spec, {"train": [Task("t", {})]})
    try:
        assert (name,) in scraped(shelf)["agentrl_step"]
    finally:
        shelf.store.set_run_status(run.id, "finished")


def test_database_that_is_down__fails_the_scrape(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise NotReadyError("the database is away")

    monkeypatch.setattr(shelf.reader, "ask", refuse)
    answer = shelf.client.get("/metrics")
    assert answer.status_code == 503
    assert "the database is away" in answer.text
