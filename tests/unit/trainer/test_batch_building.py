"""From stored trajectories to a batch: what is kept, where each number lands, and why the rest is refused."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from trainer_samples import segment, stored

from agentrl.errors import UsageError
from agentrl.trainer.batch import BatchTrajectory, build_batch
from agentrl.types import DropReason, Outcome, Sampling, Segment, StoredTrajectory, Termination


def build(*trajectories: StoredTrajectory, max_context: int = 100) -> list[BatchTrajectory]:
    batch = build_batch(trajectories, max_context=max_context)
    assert batch.rejected == []
    return batch.trajectories


def only_reason(trajectory: StoredTrajectory, *, max_context: int = 100) -> DropReason:
    batch = build_batch([trajectory], max_context=max_context)
    assert batch.trajectories == []
    assert batch.rejected[0][0] == trajectory.id
    return batch.rejected[0][1]


def test_trajectory__tokens_in_order_and_only_actions_have_positions() -> None:
    (built,) = build(stored(segments=[segment(0, 4, 3), segment(1, 2, 2), segment(2, 3, 0)]))
    (context,) = built.contexts
    assert context.tokens.tolist() == [0, 1, 2, 3, 5, 6, 7, 10, 11, 15, 16, 20, 21, 22]
    assert context.tokens[context.positions].tolist() == [5, 6, 7, 15, 16]
    assert built.turn_id.tolist() == [0, 0, 0, 1, 1]
    assert built.n_turns == 2
    assert built.loss_mask.all()
    assert not built.seams.any()


def test_rewritten_context__starts_a_row_and_marks_the_seam() -> None:
    segments = [segment(0, 4, 3), segment(1, 6, 2, context=1), segment(2, 1, 1, context=1)]
    (built,) = build(stored(segments=segments))
    assert [len(c.tokens) for c in built.contexts] == [7, 10]
    assert [c.positions.tolist() for c in built.contexts] == [[4, 5, 6], [6, 7, 9]]
    assert built.turn_id.tolist() == [0, 0, 0, 1, 1, 2]
    assert built.seams.tolist() == [False, False, True, False, False, False]


def test_final_observation_in_a_new_context__is_no_seam() -> None:
    (built,) = build(stored(segments=[segment(0, 4, 3), segment(1, 6, 0, context=1)]))
    assert not built.seams.any()
    assert built.contexts[1].positions.tolist() == []


def test_turn_rewards__sit_on_the_last_action_token_of_their_turn() -> None:
    segments = [segment(0, 4, 3, reward=0.5), segment(1, 2, 2), segment(2, 3, 0, reward=-0.25)]
    (built,) = build(stored(segments=segments, reward=1.0))
    assert built.rewards.tolist() == [0.0, 0.0, 0.5, 0.0, -0.25]
    assert built.reward == 1.0


def test_loss_mask_of_a_segment__leaves_actions_in_place() -> None:
    segments = [segment(0, 4, 3, loss_mask=np.array([1, 0, 1], dtype=np.uint8)), segment(1, 2, 2)]
    (built,) = build(stored(segments=segments))
    assert built.loss_mask.tolist() == [True, False, True, True, True]
    assert built.n_actions == 5


def test_arrays__have_their_types_and_own_memory() -> None:
    source = stored(segments=[segment(0, 4, 3, versions=np.array([1, 1, 2], dtype=np.int32))])
    (built,) = build(source)
    assert built.token_version.tolist() == [1, 1, 2]
    assert built.logp_rollout.dtype == torch.float32
    built.logp_rollout.zero_()
    assert source.segments[0].logprobs.tolist() == [-1.0, -1.0, -1.0]


NAN = np.array([-1.0, np.nan, -1.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": Outcome.INFRASTRUCTURE, "termination": Termination.FAILED, "reward": None}, DropReason.INFRASTRUCTURE),
        ({"outcome": Outcome.POLICY_ENDED, "termination": Termination.ABORTED, "reward": None}, DropReason.INFRASTRUCTURE),
        ({"reward": None}, DropReason.UNGRADED),
        ({"reward": float("inf")}, DropReason.NON_FINITE),
        ({"segments": []}, DropReason.ZERO_ACTION),
        ({"segments": [segment(0, 4, 0)]}, DropReason.ZERO_ACTION),
        ({"segments": [segment(0, 4, 3, logprobs=NAN)]}, DropReason.NON_FINITE),
        ({"segments": [segment(0, 4, 3, logprobs=np.full(3, -np.inf, np.float32))]}, DropReason.NON_FINITE),
        ({"segments": [segment(0, 4, 3, logprobs=np.full(3, 0.01, np.float32))]}, DropReason.NON_FINITE),
        ({"segments": [segment(0, 4, 3, reward=float("nan"))]}, DropReason.NON_FINITE),
        ({"segments": [segment(0, 4, 3, logprobs=np.full(2, -1, np.float32))]}, DropReason.TOKEN_DRIFT),
        ({"segments": [segment(0, 4, 3, versions=np.zeros(4, np.int32))]}, DropReason.TOKEN_DRIFT),
        ({"segments": [segment(0, 4, 3, loss_mask=np.ones(1, np.uint8))]}, DropReason.TOKEN_DRIFT),
        ({"segments": [segment(0, 0, 3)]}, DropReason.TOKEN_DRIFT),
        ({"segments": [segment(0, 4, 3), segment(1, 0, 2, context=1)]}, DropReason.TOKEN_DRIFT),
        ({"segments": [segment(0, 4, 3, versions=np.array([2, 1, 2], np.int32))]}, DropReason.BAD_VERSIONS),
        ({"segments": [segment(0, 4, 1, versions=np.array([-1], np.int32))]}, DropReason.BAD_VERSIONS),
        ({"segments": [segment(0, 4, 2, loss_mask=np.zeros(2, np.uint8))]}, DropReason.EMPTY_AFTER_MASK),
        ({"segments": [segment(0, 60, 3), segment(1, 40, 2)]}, DropReason.OVERLONG),
    ],
)
def test_bad_trajectory__refused_with_its_exact_reason(changes: dict[str, Any], reason: DropReason) -> None:
    assert only_reason(stored(**changes)) is reason


def test_versions_that_fall_between_turns__refused() -> None:
    first, second = segment(0, 4, 1, versions=np.array([3], np.int32)), segment(1, 4, 1, versions=np.array([2], np.int32))
    assert only_reason(stored(segments=[first, second])) is DropReason.BAD_VERSIONS


def test_one_bad_trajectory__leaves_the_others() -> None:
    batch = build_batch([stored(0), stored(1, reward=None), stored(2)], max_context=100)
    assert [t.id for t in batch.trajectories] == [stored(0).id, stored(2).id]
    assert [reason for _, reason in batch.rejected] == [DropReason.UNGRADED]


def test_same_trajectory_twice__second_refused() -> None:
    batch = build_batch([stored(0), stored(0)], max_context=100)
    assert len(batch.trajectories) == 1
    assert batch.rejected == [(stored(0).id, DropReason.DUPLICATE)]


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": Sampling(top_p=0.9)},
        {"sampling": Sampling(top_k=5)},
        {"sampling": Sampling(temperature=0.0)},
        {"sampling": Sampling(temperature=0.7), "logprob_kind": "raw"},
    ],
)
def test_log_probs_that_cannot_be_recomputed__refused_as_a_wrong_set_up(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="log-probs of kind"):
        build_batch([stored(**changes)], max_context=100)


def test_truncated_but_graded_trajectory__kept() -> None:
    (built,) = build(stored(termination=Termination.TRUNCATED_TURNS, reward=0.0))
    assert built.reward == 0.0


def test_group_and_identity__carried() -> None:
    group = uuid4()
    (built,) = build(stored(3, group=group))
    assert (built.id, built.group) == (stored(3).id, group)


def test_segments_of_any_ids__never_reinterpreted() -> None:
    ids = np.array([2**31 - 1, 0, 7], dtype=np.int32)
    (built,) = build(stored(segments=[Segment(0, ids, ids, np.full(3, -1, np.float32), np.zeros(3, np.int32))]))
    assert built.contexts[0].tokens.tolist() == [2**31 - 1, 0, 7] * 2
