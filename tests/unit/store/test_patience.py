"""Calls of unknown outcome are repeated with their keys; every other answer passes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentrl.errors import Fenced, UnknownOutcome
from agentrl.store.contract import TrajectoryStore
from agentrl.store.patience import outlasting


class Interrupted:
    """A store of which the first ``failures`` calls are done but not answered."""

    name = "interrupted"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[tuple[int, int]] = []

    def renew_trainer(self, run: int, fence: int) -> str:
        self.calls.append((run, fence))
        if len(self.calls) <= self.failures:
            raise UnknownOutcome("the connection broke")
        return "renewed"

    def publish_version(self, *_: int) -> None:
        self.calls.append((0, 0))
        raise Fenced("another trainer")


def patient(store: Interrupted, outage_s: float = 30, stopped: bool = False) -> tuple[Any, list[str]]:
    lines: list[str] = []
    return outlasting(cast(TrajectoryStore, store), outage_s, lambda: stopped, lines.append), lines


def test_repeated_by_key__until_it_is_answered_and_told_once() -> None:
    store = Interrupted(failures=2)
    outlasts, lines = patient(store)
    assert outlasts.renew_trainer(7, fence=3) == "renewed"
    assert store.calls == [(7, 3)] * 3
    assert lines == ["renew_trainer: the connection broke"]
    assert outlasts.name == "interrupted"


def test_other_errors__are_passed_on_at_once() -> None:
    store = Interrupted(failures=0)
    with pytest.raises(Fenced):
        patient(store)[0].publish_version(1, 2, 3)
    assert len(store.calls) == 1


def test_bounded__the_last_unknown_outcome_is_raised() -> None:
    store = Interrupted(failures=1000)
    with pytest.raises(UnknownOutcome):
        patient(store, outage_s=0.2)[0].renew_trainer(7, 3)
    assert len(store.calls) > 1


def test_bounded__a_process_that_was_told_to_stop_does_not_wait() -> None:
    store = Interrupted(failures=1000)
    with pytest.raises(UnknownOutcome):
        patient(store, stopped=True)[0].renew_trainer(7, 3)
    assert len(store.calls) == 1
