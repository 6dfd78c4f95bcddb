"""Sub-agents in a batch: trained with their episode, each with the verdict that counts for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from trainer_samples import random_trajectory, reference_model, segment, stored, trained

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import TokenDrift
from agentrl.store.contract import ClaimedItem
from agentrl.store.sub_agents import adopt
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.credit import Values, assign_credit
from agentrl.trainer.gate import check_batch
from agentrl.trainer.loop import _sort_items
from agentrl.types import DropReason, Outcome, StoredTrajectory

GROUP: dict[str, Any] = {"advantage": "group", "critic": None, "group_size": 2, "truncation": "zero"}


def child(number: int, parent: StoredTrajectory, turn: int = 0, **changes: Any) -> StoredTrajectory:
    """One whose verdict is its parent's, unless ``reward`` says otherwise."""
    inherits = "reward" not in changes
    made = stored(number, environment="helper", **changes)
    return replace(made, parent=parent.id, parent_segment=turn, inherits=inherits, seat=number)


def episode(number: int, *children: tuple[int, dict[str, Any]], **changes: Any) -> StoredTrajectory:
    """Its sub-agents by the turn that started them."""
    root = stored(number, **changes)
    return adopt(root, [child(100 * number + i, root, turn, **more) for i, (turn, more) in enumerate(children)])


def batch_of(*episodes: StoredTrajectory) -> Batch:
    batch = build_batch([member for one in episodes for member in one.family], max_context=1000)
    assert not batch.rejected
    return batch


def test_critic__each_member_is_credited_with_the_verdict_that_counts_for_it() -> None:
    one = episode(1, (0, {}), (1, {"reward": 0.25}), reward=1.0)
    batch = batch_of(one)
    values = [Values(torch.full((t.n_actions,), 0.5), 0.0) for t in batch.trajectories]
    credit = assign_credit(batch, values, AlgorithmConfig(advantage="turn_gae", gae_lambda=1.0))
    assert [float(a[0]) for a in credit.advantages] == pytest.approx([0.5, 0.5, -0.25])
    assert credit.policy_weights.denominator == 15


def test_group__one_without_a_verdict_has_the_advantage_of_the_turn_that_started_it() -> None:
    a = uuid4()
    good, bad = episode(1, (0, {}), group=a, reward=1.0), episode(2, (0, {}), (1, {}), group=a, reward=0.0)
    credit = assign_credit(batch_of(good, bad), None, AlgorithmConfig(**GROUP))
    assert [x.tolist() for x in credit.advantages] == [[0.5] * 5] * 2 + [[-0.5] * 5] * 3
    turns = [segment(0, 4, 3, reward=0.5), segment(1, 2, 2)]
    good = episode(1, (0, {}), (1, {}), group=a, segments=turns, reward=1.0)
    credit = assign_credit(batch_of(good, bad), None, AlgorithmConfig(**{**GROUP, "advantage": "turn_group"}))
    whole = credit.advantages[0]
    assert float(whole[0]) != float(whole[-1])
    assert credit.advantages[1].tolist() == [float(whole[0])] * 5
    assert credit.advantages[2].tolist() == [float(whole[-1])] * 5


def test_group__nested_ones_inherit_through_their_parents_in_any_order() -> None:
    a = uuid4()
    root = stored(1, group=a, reward=1.0)
    middle = child(5, root, 1)
    family = adopt(root, [middle, child(6, middle, 0)]).family
    other = stored(2, group=a, reward=0.0)
    batch = build_batch([*reversed(family), other], max_context=1000)
    credit = assign_credit(batch, None, AlgorithmConfig(**GROUP))
    assert [float(x[0]) for x in credit.advantages] == [0.5, 0.5, 0.5, -0.5]


def test_group__own_verdicts_are_compared_among_the_same_environment_of_the_group() -> None:
    a = uuid4()
    good = episode(1, (0, {"reward": 1.0}), (0, {}), group=a, reward=0.0)
    bad = episode(2, (0, {"reward": 0.0}), group=a, reward=0.0)
    credit = assign_credit(batch_of(good, bad), None, AlgorithmConfig(**GROUP))
    assert [float(x[0]) for x in credit.advantages] == [0.0, 0.5, 0.0, 0.0, -0.5]


def test_whitened_returns__each_token_has_its_own() -> None:
    settings = AlgorithmConfig(advantage="reinforce_pp", critic=None, truncation="zero", normalise="none")
    credit = assign_credit(batch_of(episode(1, (0, {}), reward=1.0), episode(2, reward=0.0)), None, settings)
    first, helper, second = (float(x[0]) for x in credit.advantages)
    assert first == helper > 0 > second


def item(one: StoredTrajectory, lag: int = 0) -> ClaimedItem:
    return ClaimedItem(one.id, 7, 0, lag, [one])


def test_unsound_sub_agent__drops_its_episode_and_one_that_never_acted_does_not() -> None:
    broken = episode(1, (0, {"segments": [segment(0, 4, 3, logprobs=np.full(3, np.nan, np.float32))]}))
    silent = episode(2, (0, {"segments": [segment(0, 4, 0)]}))
    batch, consumed, dropped = _sort_items([item(broken), item(silent)], 100, AlgorithmConfig())
    assert dropped == [(broken.id, 7, DropReason.NON_FINITE)]
    assert consumed == [(silent.id, 7)]
    assert [t.id for t in batch.trajectories] == [silent.id]


def test_truncated_episode_without_a_verdict__so_are_its_sub_agents() -> None:
    one = episode(1, (0, {}), reward=None, outcome=Outcome.POLICY_ENDED)
    (_, helper) = batch_of(one).trajectories
    assert (helper.reward, helper.outcome) == (None, Outcome.POLICY_ENDED)


def test_gate__compares_sub_agents_too() -> None:
    policy = trained(reference_model())
    root = random_trajectory(1, policy)
    helper = replace(random_trajectory(2, policy), parent=root.id, parent_segment=0, inherits=True)
    one = adopt(root, [helper])
    gap = check_batch([item(one)], batch_of(one), policy)
    assert gap is not None
    shifted = replace(helper.segments[0], logprobs=helper.segments[0].logprobs - np.float32(0.5))
    lie = adopt(root, [replace(helper, segments=[shifted, *helper.segments[1:]])])
    with pytest.raises(TokenDrift, match=str(helper.id)):
        check_batch([item(lie)], batch_of(lie), policy)
