"""What the agent remembers of jobs is bounded, and whoever waits is answered once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sandboxes.agent import jobs as jobs_module
from sandboxes.agent.jobs import Jobs


class Running:
    """A run as far as jobs look at it."""

    def so_far(self) -> tuple[dict[str, Any], bytes]:
        return {"running": True}, b"so far"


def test_waiters__are_answered_at_the_end_or_at_their_time_and_once() -> None:
    jobs = Jobs()
    jobs.begin(1, Running())  # type: ignore[arg-type]
    now = time.monotonic()
    jobs.wait(10, 1, now - 1)
    jobs.wait(11, 1, now + 60)
    assert jobs.next_deadline < now
    assert jobs.due() == [(10, ({"running": True}, b"so far"))]
    jobs.end(1, ({"running": False}, b"all"))
    assert jobs.due() == [(11, ({"running": False}, b"all"))]
    assert jobs.due() == []
    assert jobs.next_deadline == float("inf")


def test_ended_jobs__are_forgotten_after_some_others_and_with_their_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_REMEMBERED", 2)
    jobs = Jobs()
    for number in (1, 2, 3):
        jobs.begin(number, Running())  # type: ignore[arg-type]
        jobs.end(number, ({"job": number}, b""))
    assert jobs.result(3) == ({"job": 3}, b"")
    with pytest.raises(ProcessLookupError, match="no job 1"):
        jobs.result(1)
    jobs.forget()
    with pytest.raises(ProcessLookupError):
        jobs.result(3)
