"""The gate stops the run on every way in which trainer and engine can disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pytest
import torch
from trainer_samples import random_trajectory, reference_model, trained

from agentrl.errors import TokenDrift
from agentrl.store.contract import ClaimedItem
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.gate import check_batch
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.types import Sampling, StoredTrajectory


@pytest.fixture(scope="module")
def policy() -> TrainedModel:
    return trained(reference_model())


def items(trajectories: Sequence[StoredTrajectory], lag: int = 0) -> list[ClaimedItem]:
    return [ClaimedItem(uuid4(), 1, 0, lag, [trajectory]) for trajectory in trajectories]


def batch_of(trajectories: Sequence[StoredTrajectory]) -> Batch:
    return build_batch(trajectories, max_context=100)


def check(policy: TrainedModel, stored: StoredTrajectory, batch: Batch | None = None) -> float | None:
    return check_batch(items([stored]), batch or batch_of([stored]), policy)


def change_segment(stored: StoredTrajectory, index: int, **changes: object) -> StoredTrajectory:
    segments = list(stored.segments)
    segments[index] = replace(segments[index], **changes)  # type: ignore[arg-type]
    return replace(stored, segments=segments)


def test_same_weights__pass_with_a_tiny_difference(policy: TrainedModel) -> None:
    gap = check_batch(items(good := [random_trajectory(i, policy) for i in range(3)]), batch_of(good), policy)
    assert gap is not None
    assert gap < 1e-5


def test_lagging_items_only__nothing_was_compared(policy: TrainedModel) -> None:
    good = [random_trajectory(0, policy)]
    assert check_batch(items(good, lag=1), batch_of(good), policy) is None


def test_lost_separator__is_found_as_another_prefix(policy: TrainedModel) -> None:
    good = random_trajectory(0, policy)
    lost = change_segment(good, 1, observation=good.segments[1].observation[1:])
    with pytest.raises(TokenDrift, match=r"segment 1, action token \d+"):
        check(policy, lost)


def test_other_temperature__is_found(policy: TrainedModel) -> None:
    good = random_trajectory(0, policy)
    with pytest.raises(TokenDrift, match="log-prob"):
        check(policy, replace(good, lineage=replace(good.lineage, sampling=Sampling(temperature=1.4))))


def test_masked_tokens__may_be_of_older_weights(policy: TrainedModel) -> None:
    """Where tokens are left out as too old, the item's lag is that of what trains: nothing of it can be compared."""
    good = random_trajectory(0, policy)
    n = good.segments[0].n_act
    older = change_segment(good, 0, logprobs=np.full(n, -9.0, np.float32), loss_mask=np.zeros(n, np.uint8))
    assert check(policy, older) is None
    with pytest.raises(TokenDrift, match="log-prob"):
        check(policy, change_segment(older, 0, loss_mask=None))


def test_other_weights__are_found(policy: TrainedModel) -> None:
    good = random_trajectory(0, policy)
    with pytest.raises(TokenDrift, match=str(good.id)):
        check(trained(reference_model(seed=5)), good)


def test_not_a_number__is_not_taken_for_equal(policy: TrainedModel) -> None:
    good = random_trajectory(0, policy)
    batch = batch_of([good])
    batch.trajectories[0].logp_rollout[2] = float("nan")
    with pytest.raises(TokenDrift, match="action token 2"):
        check(policy, good, batch)


def test_tool_token_in_the_loss__is_found(policy: TrainedModel) -> None:
    good = random_trajectory(0, policy)
    batch = batch_of([good])
    first = batch.trajectories[0].contexts[0]
    shifted = replace(first, positions=first.positions - 1)
    batch.trajectories[0] = replace(batch.trajectories[0], contexts=(shifted, *batch.trajectories[0].contexts[1:]))
    with pytest.raises(TokenDrift, match="did not sample"):
        check(policy, good, batch)


def test_changed_id__is_found(policy: TrainedModel) -> None:
    good = random_trajectory(0, policy)
    batch = batch_of([good])
    batch.trajectories[0].contexts[0].tokens[1] += 1
    with pytest.raises(TokenDrift, match="token 1: the token differs"):
        check(policy, good, batch)


def test_reward_on_the_wrong_token__is_found(policy: TrainedModel) -> None:
    good = change_segment(random_trajectory(0, policy), 0, reward=0.5)
    batch = batch_of([good])
    rewards = torch.roll(batch.trajectories[0].rewards, -1)
    batch.trajectories[0] = replace(batch.trajectories[0], rewards=rewards)
    with pytest.raises(TokenDrift, match="not on the turn's last"):
        check(policy, good, batch)


def test_other_verdict__is_found(policy: TrainedModel) -> None:
    good = random_trajectory(1, policy)
    batch = batch_of([good])
    batch.trajectories[0] = replace(batch.trajectories[0], reward=0.25)
    with pytest.raises(TokenDrift, match=r"reward 0\.25"):
        check(policy, good, batch)


def test_samples__have_finite_logprobs(policy: TrainedModel) -> None:
    assert all(np.isfinite(s.logprobs).all() for s in random_trajectory(0, policy).segments)
