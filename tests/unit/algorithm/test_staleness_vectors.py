"""Lag bound and admission against the reference vectors."""

from __future__ import annotations

import pytest
import torch
from vectors import close, vector

from agentrl.algorithm.metrics import masked_mean
from agentrl.config.run import StalenessSettings
from agentrl.staleness import admissible, lag_bound, refresh_due, sync_strength
from agentrl.trainer.lags import TokenLags
from agentrl.types import PolicyVersion


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


def test_refresh_of_every_third_version__workers_lag_and_the_bound_leaves_room() -> None:
    given, expected = vector("refresh_cadence")
    every, held = given["r"], 0
    workers = []
    for version in given["trainer_versions"]:
        held = version if refresh_due(version, held, every) and version > held else held
        workers.append(held)
    assert workers == expected["worker_version"]
    assert [v - w for v, w in zip(given["trainer_versions"], workers, strict=True)] == expected["start_lag"]
    for bound, fits, admitted in zip(given["L_values"], expected["config_ok"], expected["L_admit"], strict=True):
        if not fits:
            with pytest.raises(ValueError, match="refresh_every"):
                StalenessSettings(lag=bound, refresh_every=every)
            continue
        assert StalenessSettings(lag=bound, refresh_every=every).bound == bound
        assert admissible(bound, 8, 3, every - 1) == (admitted + 1) * 8 - 3


def test_lag_of_a_trajectorys_tokens__largest_smallest_and_mean_by_tokens() -> None:
    given, expected = vector("segment_admissibility")
    versions = [PolicyVersion(v, v - 1 if v else None, v, "uri", "sum", "published") for v in range(20)]
    for i, case in enumerate(given["cases"]):
        if expected["decision"][i].startswith("reject"):
            continue  # such versions never get to a batch
        tokens = torch.repeat_interleave(torch.tensor(case["v"]), torch.tensor(given["segment_tokens"][i]))
        lags = TokenLags(versions.__getitem__).of(tokens, versions[case["trainer"]])
        assert (int(lags.max()), int(lags.min())) == (expected["lag_max"][i], expected["lag_min"][i])
        assert int(lags.max() - lags.min()) == expected["span"][i]
        assert close(masked_mean(lags, torch.ones(len(lags))).value, expected["lag_mean_token"][i])
        assert (int(lags.max()) <= given["L"]) is (expected["decision"][i] == "ok")
