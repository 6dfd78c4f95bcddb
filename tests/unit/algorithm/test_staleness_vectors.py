"""Lag bound and admission against the reference vectors."""

from __future__ import annotations

import pytest
from vectors import close, vector

from agentrl.staleness import admissible, lag_bound, sync_strength


def test_sync_strength_to_lag_bound__matches_both_ways() -> None:
    given, expected = vector("eta_to_lag")
    assert [lag_bound(eta) for eta in given["eta"]] == expected["L"]
    for bound, eta in expected["eta_of_L"].items():
        assert close(sync_strength(int(bound)), eta)


@pytest.mark.parametrize("eta", [-0.1, 1.1])
def test_sync_strength_outside_its_range__refused(eta: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        lag_bound(eta)


def test_admission_in_its_outstanding_form__equals_the_counter_form() -> None:
    given, expected = vector("admission")
    batch = given["B"]
    for case, capacity in zip(given["cases"], expected["capacity"], strict=True):
        if case["L"] is None:
            continue
        outstanding = case["accepted"] - case["version"] * batch + case["running"]
        assert admissible(case["L"], batch, outstanding, 0) == capacity


def test_admission_while_training__leased_items_still_count() -> None:
    given, expected = vector("admission_during_training")
    capacities = [
        admissible(given["L"], given["B"], given["in_training"] + given["ready"] + running, 0) for running in given["running"]
    ]
    assert capacities == expected["capacity_outstanding_form"]
    assert capacities == expected["capacity_areal_form"]


def test_admission_of_a_worker_one_version_behind__admits_a_batch_less() -> None:
    assert admissible(2, 8, 4, 1) == admissible(2, 8, 4, 0) - 8
