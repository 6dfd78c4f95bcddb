"""Where the seconds of a trajectory went."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentrl.view.timeline import life

START = datetime(2026, 1, 1, tzinfo=UTC)


def moves(*places: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"to_place": place, "at": START + timedelta(seconds=at)} for place, at in places]


def spans(*places: tuple[str, float]) -> dict[str, float]:
    return {span.what: span.seconds for span in life(moves(*places))}


def test_life__each_wait_until_the_next_move() -> None:
    found = spans(("live", 0), ("grade_job", 4), ("graded", 4.5), ("ready", 6), ("lease", 8), ("consumed", 9))
    assert found == {
        "runs": 4, "waits for a verdict": 0.5, "waits for its group": 1.5, "waits for the trainer": 2,
        "is trained": 1,
    }  # fmt: skip


def test_life__one_that_another_worker_continued_runs_once() -> None:
    assert spans(("live", 0), ("live", 3), ("ready", 5), ("dropped", 6)) == {"runs": 5, "waits for the trainer": 1}


def test_life__of_one_that_was_returned_to_the_queue_has_both_waits() -> None:
    found = life(moves(("live", 0), ("ready", 1), ("lease", 2), ("ready", 3), ("lease", 5), ("consumed", 6)))
    assert [(span.what, span.seconds) for span in found] == [
        ("runs", 1), ("waits for the trainer", 1), ("is trained", 1), ("waits for the trainer", 2), ("is trained", 1),
    ]  # fmt: skip
    assert max(span.share for span in found) == 1


@pytest.mark.parametrize("places", [[], [("live", 0.0)]])
def test_life__of_one_that_runs_is_empty(places: list[tuple[str, float]]) -> None:
    assert life(moves(*places)) == []
