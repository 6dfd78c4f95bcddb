"""Units that an environment marked: ids, advantages, whitening, denominators and values follow them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from trainer_samples import segment, stored

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch, BatchTrajectory, build_batch
from agentrl.trainer.credit import Credit, Values, assign_credit
from agentrl.types import DropReason, Segment


def marked(index: int, n_act: int, *starts: int, **changes: Any) -> Segment:
    """A turn whose units begin at the given action tokens."""
    units = np.zeros(n_act, np.uint8)
    units[list(starts)] = 1
    return segment(index, 2, n_act, unit_starts=units, **changes)


def build(*turns: Segment, **changes: Any) -> BatchTrajectory:
    batch = build_batch([stored(segments=turns, **changes)], max_context=1000)
    assert not batch.rejected
    return batch.trajectories[0]


def credit(trajectories: list[BatchTrajectory], values: list[list[float]], **changes: Any) -> Credit:
    settings = AlgorithmConfig(**{"gae_lambda": 1.0, **changes})
    return assign_credit(Batch(trajectories, []), [Values(torch.tensor(v), 0.0) for v in values], settings)


@pytest.mark.parametrize(
    ("turns", "units"),
    [
        ([segment(0, 2, 3), segment(1, 2, 2)], [0, 0, 0, 1, 1]),
        ([segment(0, 2, 3), marked(1, 2)], [0, 0, 0, 0, 0]),
        ([marked(0, 3, 0, 2), segment(1, 2, 2)], [0, 0, 1, 2, 2]),
        ([marked(0, 3, 2), marked(1, 2, 1)], [0, 0, 1, 1, 2]),
        ([marked(0, 3), marked(1, 2), segment(2, 2, 1)], [0, 0, 0, 0, 0, 1]),
    ],
)
def test_marks__number_the_units_over_all_turns(turns: list[Segment], units: list[int]) -> None:
    built = build(*turns)
    assert built.unit_id.tolist() == units
    assert built.n_units == units[-1] + 1
    assert built.n_turns == len(turns)
    assert len(built.anchors) == built.n_units


def test_node_of_several_turns__one_value_one_advantage_and_its_rewards_together() -> None:
    turns = [segment(0, 2, 3, reward=0.25), marked(1, 2, reward=0.5), segment(2, 2, 1)]
    given = credit([build(*turns, reward=1.0)], [[0.2, 9.0, 9.0, 9.0, 9.0, 0.5]], gae_lambda=0.0)
    assert given.advantages[0].tolist() == pytest.approx([0.25 + 0.5 + 0.5 - 0.2] * 5 + [1.0 - 0.5])
    assert given.value_weights is not None
    assert given.value_weights.per_token[0].tolist() == [1, 0, 0, 0, 0, 1]
    assert given.local is not None
    assert given.local[0].tolist() == pytest.approx([0.3, -0.5])


def test_node_inside_a_turn__its_halves_get_credit_of_their_own() -> None:
    given = credit([build(marked(0, 4, 0, 2))], [[0.2, 9.0, 0.9, 9.0]], gae_lambda=0.0)
    assert given.advantages[0].tolist() == pytest.approx([0.7, 0.7, 0.1, 0.1])


def test_whitening_per_turn__every_unit_counts_once_however_many_turns_it_has() -> None:
    long, short = build(segment(0, 2, 3), marked(1, 7)), build(segment(0, 2, 1), reward=0.0)
    given = credit([long, short], [[0.0] * 10, [0.0]], normalise="turn")
    assert given.advantages[0].tolist() == pytest.approx([1.0] * 10, abs=1e-6)
    assert given.advantages[1].tolist() == pytest.approx([-1.0], abs=1e-6)


def test_denominator_per_turn__counts_units() -> None:
    joined, halves = build(segment(0, 2, 3), marked(1, 2)), build(marked(0, 4, 0, 2))
    given = credit([joined, halves], [[0.0] * 5, [0.0] * 4], aggregation="turn_mean")
    assert given.policy_weights.denominator == 3
    assert [float(w.sum()) for w in given.policy_weights.per_token] == pytest.approx([1.0, 2.0])


def test_hierarchical_mapping__ends_with_the_unit_and_not_with_the_turn() -> None:
    values = [0.2, 0.4, 0.1, 0.5, 0.7]
    given = credit([build(segment(0, 2, 3), marked(1, 2))], [values], mapping="hierarchical")
    assert given.advantages[0].tolist() == pytest.approx([1 - v for v in values])
    assert given.local is not None
    assert given.local[0].tolist() == pytest.approx([-0.2])


def test_group_of_equal_states__a_unit_inside_a_turn_is_compared_where_the_same_was_said_before() -> None:
    group = uuid4()
    settings = AlgorithmConfig(
        advantage="anchor_group", critic=None, group_size=2, truncation="zero", group_ddof=0, gamma=1.0, loss="reinforce"
    )
    other = marked(0, 4, 0, 2, action=np.array([6, 6, 7, 7], np.int32))

    def advantages(second: Segment) -> list[float]:
        members = [build(marked(0, 4, 0, 2), group=group), build(second, group=group, reward=0.0)]
        return assign_credit(Batch(members, []), None, settings).advantages[0].tolist()

    assert advantages(marked(0, 4, 0, 2)) == pytest.approx([1.0] * 4)
    assert advantages(other) == pytest.approx([1.0] * 2 + [0.5] * 2)  # both began in the same state, then said other things


def test_marks_of_another_length__refused() -> None:
    batch = build_batch([stored(segments=[segment(0, 2, 3, unit_starts=np.ones(2, np.uint8))])], max_context=1000)
    assert [reason for _, reason in batch.rejected] == [DropReason.TOKEN_DRIFT]
