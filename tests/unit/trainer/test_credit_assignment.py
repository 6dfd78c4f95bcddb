"""Credit: where the reward goes, how an episode that was cut off counts, and which denominators result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from trainer_samples import segment, stored

from agentrl.config.algorithm import AlgorithmConfig, CriticConfig
from agentrl.trainer.baselines import uniform_group_ids
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.credit import Credit, Values, assign_credit
from agentrl.types import Outcome, StoredTrajectory, Termination

CUT: dict[str, Any] = {"outcome": Outcome.POLICY_ENDED, "termination": Termination.TRUNCATED_TURNS, "reward": None}


def settings(**changes: Any) -> AlgorithmConfig:
    with_critic = {"gae_lambda": 1.0, "truncation": "bootstrap"} if changes.get("critic", True) else {}
    return AlgorithmConfig(**{**with_critic, **changes})


def batch_of(*trajectories: StoredTrajectory) -> Batch:
    batch = build_batch(trajectories, max_context=1000)
    assert not batch.rejected
    return batch


def credit_of(trajectory: StoredTrajectory, at_actions: Sequence[float], final: float = 0.0, **changes: Any) -> Credit:
    return assign_credit(batch_of(trajectory), [Values(torch.tensor(at_actions), final)], settings(**changes))


TURN_VALUES = [0.2, 9.0, -9.0, 0.5, 7.0]
"""V of the two turns is 0.2 and 0.5; what the critic says inside a turn must not matter."""


def test_turn_credit__reward_minus_the_value_at_each_turn_start() -> None:
    credit = credit_of(stored(), TURN_VALUES)
    assert credit.advantages[0].tolist() == pytest.approx([0.8, 0.8, 0.8, 0.5, 0.5])
    assert credit.returns is not None
    assert credit.value_weights is not None
    assert credit.returns[0].tolist() == pytest.approx([1.0] * 5)
    assert credit.value_weights.per_token[0].tolist() == [1, 0, 0, 1, 0]
    assert (credit.policy_weights.denominator, credit.value_weights.denominator) == (5, 2)


def test_turn_credit_with_length_adaptive_lambda__counts_turns() -> None:
    credit = credit_of(stored(), TURN_VALUES, gae_lambda="length_adaptive")
    lam = 1 - 1 / (1.5 * 2)
    assert credit.advantages[0][0].item() == pytest.approx(0.5 - 0.2 + lam * 0.5)
    assert credit.returns is not None
    assert credit.returns[0][0].item() == pytest.approx(1.0)  # the critic's own lambda is 1


def test_token_credit__skips_observations_and_trains_every_action_value() -> None:
    credit = credit_of(stored(), [0.1, 0.2, 0.3, 0.4, 0.5], advantage="token_gae", gae_lambda=0.5, gamma=0.9)
    expected, carry = [], 0.0
    for value, following, reward in [(0.5, 0.0, 1.0), (0.4, 0.5, 0), (0.3, 0.4, 0), (0.2, 0.3, 0), (0.1, 0.2, 0)]:
        carry = reward + 0.9 * following - value + 0.45 * carry
        expected.append(carry)
    assert credit.advantages[0].tolist() == pytest.approx(expected[::-1])
    assert credit.value_weights is not None
    assert credit.value_weights.denominator == 5


@pytest.mark.parametrize("advantage", ["turn_gae", "token_gae"])
def test_longer_observations__change_no_advantage(advantage: str) -> None:
    short = credit_of(stored(), [0.1, 0.2, 0.3, 0.4, 0.5], advantage=advantage, gae_lambda=0.7)
    long = credit_of(
        stored(segments=[segment(0, 300, 3), segment(1, 200, 2), segment(2, 50, 0)]),
        [0.1, 0.2, 0.3, 0.4, 0.5],
        advantage=advantage,
        gae_lambda=0.7,
    )
    assert torch.equal(short.advantages[0], long.advantages[0])


def test_turn_reward__is_credited_to_its_own_and_earlier_turns() -> None:
    trajectory = stored(segments=[segment(0, 4, 3, reward=0.5), segment(1, 2, 2)], reward=1.0)
    credit = credit_of(trajectory, [0.0] * 5)
    assert credit.advantages[0].tolist() == pytest.approx([1.5, 1.5, 1.5, 1.0, 1.0])


@pytest.mark.parametrize("advantage", ["turn_gae", "token_gae"])
def test_graded_truncation__counts_as_terminated(advantage: str) -> None:
    cut = stored(termination=Termination.TRUNCATED_TURNS, outcome=Outcome.GRADED, reward=0.25)
    ended = stored(termination=Termination.TERMINATED, outcome=Outcome.GRADED, reward=0.25)
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    for one, other in zip(
        credit_of(cut, values, final=100.0, advantage=advantage).advantages,
        credit_of(ended, values, advantage=advantage).advantages,
        strict=True,
    ):
        assert torch.equal(one, other)


def test_ungraded_end_with_bootstrap__value_after_the_last_token_stands_for_the_future() -> None:
    credit = credit_of(stored(**CUT), TURN_VALUES, final=0.6, gamma=0.9)
    assert credit.advantages[0][-1].item() == pytest.approx(0.9 * 0.6 - 0.5)
    assert credit.returns is not None
    assert credit.returns[0][-1].item() == pytest.approx(0.54)


def test_ungraded_end_with_zero__counts_as_ended_without_reward() -> None:
    credit = credit_of(stored(**CUT), TURN_VALUES, truncation="zero")
    assert credit.advantages[0].tolist() == pytest.approx([-0.2] * 3 + [-0.5] * 2)
    assert credit.policy_weights.denominator == 5


def test_ungraded_end_with_mask__is_in_no_loss_and_no_denominator() -> None:
    batch = batch_of(stored(0), stored(1, **CUT))
    values = [Values(torch.zeros(5), 0.0)] * 2
    credit = assign_credit(batch, values, settings(truncation="mask"))
    assert credit.value_weights is not None
    assert credit.policy_weights.denominator == 5
    assert credit.value_weights.denominator == 2
    assert not credit.policy_weights.per_token[1].any()
    assert not credit.value_weights.per_token[1].any()


def test_masked_action_token__stays_in_the_recursion_and_leaves_the_loss() -> None:
    segments = [segment(0, 4, 3, loss_mask=np.array([1, 0, 1], dtype=np.uint8)), segment(1, 2, 2)]
    credit = credit_of(stored(segments=segments), [0.1, 0.2, 0.3, 0.4, 0.5], advantage="token_gae")
    plain = credit_of(stored(), [0.1, 0.2, 0.3, 0.4, 0.5], advantage="token_gae")
    assert torch.equal(credit.advantages[0], plain.advantages[0])
    assert credit.policy_weights.denominator == 4


def test_rewritten_context__one_recursion_over_both_rows() -> None:
    segments = [segment(0, 4, 3), segment(1, 6, 2, context=1)]
    credit = credit_of(stored(segments=segments), TURN_VALUES, gamma=0.5, gae_lambda=0.5)
    assert credit.advantages[0][-1].item() == pytest.approx(0.5)
    assert credit.advantages[0][0].item() == pytest.approx(0.5 - 0.2 + 0.5)  # no step lies between: no discount, no decay


GROUP: dict[str, Any] = {"advantage": "group", "critic": None, "group_size": 2, "truncation": "zero"}


def test_group_credit__by_group_id_whatever_the_order() -> None:
    a, b = uuid4(), uuid4()
    batch = batch_of(
        stored(0, group=a, reward=1.0), stored(1, group=b, reward=1.0), stored(2, group=a, reward=0.0), stored(3, group=b)
    )
    credit = assign_credit(batch, None, settings(**GROUP))
    assert [float(x[0]) for x in credit.advantages] == [0.5, 0.0, -0.5, 0.0]
    assert credit.returns is None
    assert credit.policy_weights.denominator == 20


def test_group_credit_with_mask__an_ungraded_member_feeds_no_baseline() -> None:
    a = uuid4()
    batch = batch_of(stored(0, group=a), stored(1, group=a, reward=0.0), stored(2, group=a, **CUT))
    masked = assign_credit(batch, None, settings(**{**GROUP, "truncation": "mask"}))
    assert [float(x[0]) for x in masked.advantages] == [0.5, -0.5, 0.0]
    zero = assign_credit(batch, None, settings(**GROUP))
    assert [float(x[0]) for x in zero.advantages] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_uniform_groups__are_those_whose_members_earned_the_same() -> None:
    a, b, c = uuid4(), uuid4(), uuid4()
    batch = batch_of(
        *(stored(i, group=group, reward=reward) for i, (group, reward) in enumerate([(a, 1.0), (a, 1.0), (b, 1.0), (b, 0.0)])),
        stored(4, group=c, reward=1.0),
        stored(5, group=c, **CUT),
    )
    zero, mask = settings(**GROUP), settings(**{**GROUP, "truncation": "mask"})
    assert uniform_group_ids(batch, zero, [True] * 6) == {a}  # without a verdict the cut-off member counts as 0
    assert uniform_group_ids(batch, mask, [True] * 5 + [False]) == {a, c}


def test_turn_group_credit__a_turns_reward_counts_among_the_turns_and_the_outcome_among_all() -> None:
    a = uuid4()
    first = [segment(0, 4, 3, reward=0.5), segment(1, 2, 2)]
    credit = assign_credit(
        batch_of(stored(0, first, group=a), stored(1, group=a, reward=0.0)),
        None,
        settings(**{**GROUP, "advantage": "turn_group", "gamma": 0.5}),
    )
    assert credit.advantages[0].tolist() == pytest.approx([0.25 + 0.5 * 0.5] * 3 + [0.5] * 2)
    assert credit.advantages[1].tolist() == pytest.approx([-0.5] * 3 + [-0.5] * 2)


def test_anchor_group_credit__turns_that_answered_the_same_observation_are_compared() -> None:
    a = uuid4()
    own = settings(**{**GROUP, "advantage": "anchor_group"})
    same = assign_credit(batch_of(stored(0, group=a), stored(1, group=a, reward=0.0)), None, own)
    assert same.advantages[0].tolist() == pytest.approx([1.0] * 5)
    other = [segment(0, 4, 3), segment(1, 2, 2, observation=np.array([7, 7], dtype=np.int32))]
    apart = assign_credit(batch_of(stored(0, group=a), stored(1, other, group=a, reward=0.0)), None, own)
    assert apart.advantages[0].tolist() == pytest.approx([1.0] * 3 + [0.5] * 2)


def test_whitened_returns__every_token_of_the_batch_counts_once() -> None:
    batch = batch_of(stored(0), stored(1, [segment(0, 2, 1)], reward=0.0))
    own = AlgorithmConfig(advantage="reinforce_pp", critic=None, truncation="zero")
    credit = assign_credit(batch, None, own)
    tokens = torch.cat(credit.advantages)
    assert float(tokens.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(tokens.std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    assert credit.advantages[1].tolist() == pytest.approx([-(5**0.5)])


def test_penalties__are_taken_from_each_tokens_reward() -> None:
    penalty = [torch.tensor([0.1, 0.0, 0.0, 0.0, 0.2])]
    values = [Values(torch.zeros(5), 0.0)]
    own = settings(advantage="token_gae")
    credit = assign_credit(batch_of(stored()), values, own, penalties=penalty)
    assert credit.advantages[0].tolist() == pytest.approx([0.7, 0.8, 0.8, 0.8, 0.8])


def test_overlong_trajectory__loses_reward_and_its_group_sees_it() -> None:
    a = uuid4()
    long = [segment(0, 4, 8), segment(1, 2, 2)]
    own = settings(**GROUP, overlong_limit=10, overlong_cache=4)
    credit = assign_credit(batch_of(stored(0, long, group=a), stored(1, group=a)), None, own)
    assert [float(x[0]) for x in credit.advantages] == pytest.approx([-0.5, 0.5])


def test_hierarchical_mapping__turn_advantage_at_each_turn_start_and_every_value_trained() -> None:
    values = [0.2, 0.4, 0.1, 0.5, 0.7]
    credit = credit_of(stored(), values, mapping="hierarchical")
    assert credit.advantages[0].tolist() == pytest.approx([1 - v for v in values])
    assert credit.value_weights is not None
    assert credit.value_weights.denominator == 5


def test_sequence_mean__every_trajectory_weighs_the_same() -> None:
    batch = batch_of(stored(0), stored(1, segments=[segment(0, 2, 1)]))
    credit = assign_credit(
        batch, [Values(torch.zeros(5), 0.0), Values(torch.zeros(1), 0.0)], settings(aggregation="seq_mean_token_mean")
    )
    assert [float(w.sum()) for w in credit.policy_weights.per_token] == pytest.approx([1.0, 1.0])
    assert credit.policy_weights.denominator == 2


def test_values_without_a_critic__refused() -> None:
    with pytest.raises(ValueError, match="critic"):
        assign_credit(batch_of(stored()), None, settings(critic=CriticConfig()))
