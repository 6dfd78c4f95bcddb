"""The bound of a trace that the schedule benchmark compares with."""

from __future__ import annotations

from benchmarks.rollout.schedule import Work, ideal


def test_bound__waits_for_each_episode_when_nothing_may_be_late() -> None:
    assert ideal(Work([5.0, 1.0, 1.0, 1.0], batch=1, steps=2, step_s=1.0), lag=0) == (5 + 1) + (1 + 1)


def test_bound__obeys_the_lag_bound_and_pays_for_what_ends_too_late() -> None:
    work = Work([5.0, 1.0, 1.0, 1.0], batch=1, steps=4, step_s=1.0)
    # Beside the long one three others are trained by 6 s; it ended two updates late at 5 s, and the first task came again.
    assert ideal(work, lag=1) == 5 + 5 + 1
    assert ideal(work, lag=3) == 5 + 1
