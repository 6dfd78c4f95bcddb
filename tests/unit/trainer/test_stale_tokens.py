"""Masking by lag: what is over the bound is out of loss and denominators, and credit still sees all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loop_samples import config_of
from trainer_samples import segment, stored

from agentrl.algorithm.denominators import Aggregation
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import RunFailed
from agentrl.store.contract import Claim, ClaimedItem, Masked
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.credit import Credit, Values, assign_credit
from agentrl.trainer.rounds import check_pinned
from agentrl.trainer.stale_tokens import mask_stale, mask_versions, masked_in
from agentrl.types import DropReason, StoredTrajectory

HEAD = 5
CONTEXT = 128


def turns(*versions: list[int], number: int = 0, **segment_changes: Any) -> StoredTrajectory:
    """A trajectory with a turn per list of token versions."""
    segments = [segment(i, 3, len(own), versions=np.array(own, np.int32), **segment_changes) for i, own in enumerate(versions)]
    return stored(number, segments)


def claim(*trajectories: StoredTrajectory) -> Claim:
    return Claim([ClaimedItem(t.id, 1, 0, 0, [t]) for t in trajectories], 0, 0, {})


def masked_batch(*trajectories: StoredTrajectory, bound: int = 1) -> Batch:
    found = mask_stale(claim(*trajectories), lambda version: HEAD - version, bound)
    return build_batch([t for item in found.items for t in item.trajectories], max_context=CONTEXT)


def credit(batch: Batch, aggregation: Aggregation = "token_mean") -> Credit:
    values = [Values(torch.linspace(0.0, 0.5, t.n_actions), 0.0) for t in batch.trajectories]
    settings = AlgorithmConfig(advantage="token_gae", gae_lambda=0.9, aggregation=aggregation)
    return assign_credit(batch, values, settings)


def test_lag_of_what_trains__is_within_the_bound() -> None:
    (trajectory,) = masked_batch(turns([2, 3], [4, 4, 5], [5])).trajectories
    assert trajectory.loss_mask.tolist() == [False, False, True, True, True, True]
    assert int((HEAD - trajectory.token_version[trajectory.loss_mask]).max()) == 1


def test_denominators__count_what_is_left_over_the_whole_batch() -> None:
    batch = masked_batch(turns([2, 3], [4, 4, 5], number=1), turns([5, 5], number=2))
    assert credit(batch).policy_weights.denominator == 5
    assert credit(batch, "seq_mean_token_mean").policy_weights.denominator == 2
    first = credit(batch, "seq_mean_token_mean").policy_weights.per_token[0]
    assert torch.allclose(first, torch.tensor([0.0, 0.0, 1 / 3, 1 / 3, 1 / 3]))


def test_masked_only_in_the_loss__credit_is_that_of_the_whole_trajectory() -> None:
    whole = turns([2, 3], [4, 4, 5])
    masked, plain = credit(masked_batch(whole)), credit(build_batch([whole], max_context=CONTEXT))
    assert torch.equal(masked.advantages[0], plain.advantages[0])
    assert masked.returns is not None
    assert plain.returns is not None
    assert torch.equal(masked.returns[0], plain.returns[0])


def test_ledger_truth__by_trajectory_version_and_tokens() -> None:
    long, fresh = turns([2, 3, 3], [4, 5], number=1), turns([5], number=2)
    found = mask_stale(claim(long, fresh), lambda version: HEAD - version, 1)
    assert found.items[1].trajectories[0] is fresh
    batch = masked_batch(long, fresh)
    lags = [HEAD - t.token_version for t in batch.trajectories]
    (masked,) = masked_in(batch, lags, 1)
    assert masked == Masked(long.id, [2, 3], 3)
    again = mask_versions(long, masked.versions)
    for one, other in zip(again.segments, found.items[0].trajectories[0].segments, strict=True):
        assert (one.loss_mask is None) == (other.loss_mask is None)
        assert one.loss_mask is None or other.loss_mask is None or np.array_equal(one.loss_mask, other.loss_mask)


def test_a_token_that_something_else_masked__stays_out() -> None:
    half = turns([2, 5, 5], loss_mask=np.array([1, 0, 1], np.uint8))
    (trajectory,) = masked_batch(half).trajectories
    assert trajectory.loss_mask.tolist() == [False, False, True]


@pytest.mark.parametrize("masked", [True, False])
def test_pinned_version__older_tokens_may_be_there_out_of_the_loss(masked: bool) -> None:
    """An episode that was running when its trainer died goes on under the version that the resume gave."""
    pace = config_of("sao", "staleness.lag=0", "staleness.mode=segment_mask").pace
    assert pace.schedule == "synchronous"
    trajectory = turns([4, 4], [5, 5])
    batch = masked_batch(trajectory, bound=0) if masked else build_batch([trajectory], max_context=CONTEXT)
    head: Any = SimpleNamespace(version=HEAD)
    lags = [HEAD - t.token_version for t in batch.trajectories]
    if masked:
        check_pinned(batch, lags, pace, head)
        return
    with pytest.raises(RunFailed, match=r"action token 0: sampled by version 4, 1 policy updates before version 5"):
        check_pinned(batch, lags, pace, head)


def test_nothing_left__is_empty_after_mask() -> None:
    batch = masked_batch(turns([2, 2], [3]))
    assert [reason for _, reason in batch.rejected] == [DropReason.EMPTY_AFTER_MASK]
