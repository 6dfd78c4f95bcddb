"""Advantages without a critic: what a trajectory or a turn earned against others of its group or of the batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from agentrl.algorithm.advantages import discounted_sums
from agentrl.algorithm.groups import anchor_relative, group_relative, leave_one_out, turn_group_relative, uniform_groups
from agentrl.algorithm.normalise import whiten
from agentrl.algorithm.turns import broadcast_turns, sum_by_turn
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch, BatchTrajectory
from agentrl.trainer.rewards import outcome, with_outcome


def critic_free_advantages(
    batch: Batch, rewards: Sequence[Tensor], masks: Sequence[Tensor], kept: Sequence[bool], settings: AlgorithmConfig
) -> list[Tensor]:
    """float32 [n] per trajectory.

    ``rewards`` float64 [n], without the outcome; ``masks`` bool [n]: tokens in the loss; ``kept`` False: the trajectory feeds
    no baseline and gets zeros. A sub-agent whose verdict is its parent's is no member of a group: it gets the advantage of the
    turn that started it, except where each token has a return of its own.
    """
    alone = settings.advantage == "reinforce_pp"
    members = [i for i, keep in enumerate(kept) if keep and (alone or not batch.trajectories[i].inherits)]
    result = [torch.zeros(t.n_actions) for t in batch.trajectories]
    own = _ESTIMATORS[settings.advantage](
        [batch.trajectories[i] for i in members], [rewards[i] for i in members], [masks[i] for i in members], settings
    )
    for i, advantages in zip(members, own, strict=True):
        result[i] = advantages.float()
    if not alone:
        _hand_down(batch.trajectories, result)
    return result


def _hand_down(trajectories: Sequence[BatchTrajectory], advantages: list[Tensor]) -> None:
    numbers = {trajectory.id: i for i, trajectory in enumerate(trajectories)}
    waiting = {i for i, trajectory in enumerate(trajectories) if trajectory.inherits}

    def settle(i: int) -> None:
        child = trajectories[i]
        assert child.parent is not None
        parent = numbers[child.parent]
        if parent in waiting:
            settle(parent)
        started = trajectories[parent].turn_id == child.parent_turn
        advantages[i] = torch.full_like(advantages[i], float(advantages[parent][started][-1]))
        waiting.discard(i)

    while waiting:
        settle(next(iter(waiting)))


def uniform_group_ids(batch: Batch, settings: AlgorithmConfig, kept: Sequence[bool]) -> set[Hashable]:
    """Groups that can teach nothing: all members that take part got the same outcome."""
    members = [t for t, keep in zip(batch.trajectories, kept, strict=True) if keep]
    uniform = uniform_groups([outcome(t, settings) for t in members], [_group(t) for t in members])
    return uniform | ({_group(t) for t in batch.trajectories} - {_group(t) for t in members})


def _group(trajectory: BatchTrajectory) -> Hashable:
    return trajectory.group or trajectory.id


_Estimator = Callable[[list[BatchTrajectory], list[Tensor], list[Tensor], AlgorithmConfig], list[Tensor]]


def _whole(
    members: list[BatchTrajectory], rewards: list[Tensor], masks: list[Tensor], settings: AlgorithmConfig
) -> list[Tensor]:
    """One number a trajectory, from its whole reward."""
    groups = [_group(t) for t in members]
    totals = [float(with_outcome(r, t, settings).sum()) for r, t in zip(rewards, members, strict=True)]
    if settings.advantage == "leave_one_out":
        relative = leave_one_out(totals, groups)
    else:
        relative = group_relative(totals, groups, divide_by_std=settings.group_std, ddof=settings.group_ddof)
    if settings.normalise == "trajectory" and members:
        relative = torch.cat(whiten(list(relative.split(1)), [m.any().reshape(1) for m in masks]))
    return [torch.full((t.n_actions,), float(own)) for t, own in zip(members, relative, strict=True)]


def _by_turn(
    members: list[BatchTrajectory], rewards: list[Tensor], masks: list[Tensor], settings: AlgorithmConfig
) -> list[Tensor]:
    """One number a unit of credit."""
    groups = [_group(t) for t in members]
    if settings.advantage == "turn_group":
        advantages = turn_group_relative(
            [sum_by_turn(r, t.unit_id).tolist() for r, t in zip(rewards, members, strict=True)],
            [outcome(t, settings) for t in members],
            groups,
            gamma=settings.gamma,
            divide_by_std=settings.group_std,
            ddof=settings.group_ddof,
        )
    else:
        whole = [sum_by_turn(with_outcome(r, t, settings), t.unit_id) for r, t in zip(rewards, members, strict=True)]
        advantages = anchor_relative(
            [float(units.sum()) for units in whole],
            [_return_to_go(units, settings.gamma).tolist() for units in whole],
            [t.anchors for t in members],
            groups,
            weight=settings.anchor_weight,
            divide_by_std=settings.group_std,
            ddof=settings.group_ddof,
        )
    if settings.normalise == "turn":
        advantages = whiten(advantages, [sum_by_turn(m.float(), t.unit_id) > 0 for m, t in zip(masks, members, strict=True)])
    return [broadcast_turns(a, t.unit_id) for a, t in zip(advantages, members, strict=True)]


def _whitened_returns(
    members: list[BatchTrajectory], rewards: list[Tensor], masks: list[Tensor], settings: AlgorithmConfig
) -> list[Tensor]:
    """REINFORCE++: each token's return to go, whitened over the tokens of the batch."""
    whole = [with_outcome(r, t, settings) for r, t in zip(rewards, members, strict=True)]
    return whiten([_return_to_go(r, settings.gamma) for r in whole], masks)


def _return_to_go(rewards: Tensor, gamma: float) -> Tensor:
    return discounted_sums(rewards.unsqueeze(0), torch.full((1, len(rewards)), gamma, dtype=rewards.dtype))[0]


_ESTIMATORS: dict[str, _Estimator] = {
    "group": _whole,
    "leave_one_out": _whole,
    "turn_group": _by_turn,
    "anchor_group": _by_turn,
    "reinforce_pp": _whitened_returns,
}
