"""Who earned the reward: from a batch and the critic's values to advantages, value targets and denominators.

A trajectory whose final state was graded ended there, whatever budget ran out: the value after it is 0 and the verdict counts.
Only one that was not graded follows the setting ``truncation``: bootstrap from the critic, count as ended without a verdict, or
be left out of the loss and of every baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithm.advantages import (
    broadcast_turns,
    gae,
    group_relative,
    length_adaptive_lambda,
    sum_by_turn,
    turn_starts,
)
from agentrl.algorithm.losses import Weights, aggregation_weights
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch, BatchTrajectory
from agentrl.types import Outcome


@dataclass(frozen=True, slots=True)
class Values:
    """The critic's reading of one trajectory: ``at_actions`` float32 [n], V of the state before each action token; ``final``: V
    after everything, used only where credit bootstraps."""

    at_actions: Tensor
    final: float


@dataclass(frozen=True, slots=True)
class Credit:
    """Per trajectory, tensors [n] over action tokens, in the order of the batch.

    ``returns`` are value targets (a turn's target on each of its tokens), trained where ``value_weights`` is not 0. None
    without a critic. Weights and denominators: see `agentrl.algorithm.losses.aggregation_weights`, over the whole batch.
    """

    advantages: list[Tensor]
    policy_weights: Weights
    returns: list[Tensor] | None
    value_weights: Weights | None


def bootstraps(trajectory: BatchTrajectory, settings: AlgorithmConfig) -> bool:
    """Whether the value after the last token stands for the future that was cut off."""
    return trajectory.outcome is Outcome.POLICY_ENDED and settings.truncation == "bootstrap"


def left_out(trajectory: BatchTrajectory, settings: AlgorithmConfig) -> bool:
    """Whether the trajectory takes part in no loss and no baseline."""
    return trajectory.outcome is Outcome.POLICY_ENDED and settings.truncation == "mask"


def assign_credit(batch: Batch, values: Sequence[Values] | None, settings: AlgorithmConfig) -> Credit:
    """Advantages, targets and denominators of a batch. ``values``: one per trajectory; None exactly when there is no critic."""
    if (values is None) != (settings.critic is None):
        raise ValueError("values are needed exactly when the algorithm has a critic")
    kept = [not left_out(t, settings) for t in batch.trajectories]
    policy_masks = [t.loss_mask & keep for t, keep in zip(batch.trajectories, kept, strict=True)]
    policy_weights = aggregation_weights(policy_masks, settings.aggregation)
    if values is None:
        return Credit(_group_advantages(batch, kept, settings), policy_weights, None, None)
    advantages, returns, value_masks = [], [], []
    estimate = _turn_credit if settings.advantage == "turn_gae" else _token_credit
    for trajectory, read, keep in zip(batch.trajectories, values, kept, strict=True):
        final = read.final if bootstraps(trajectory, settings) else 0.0
        advantage, target, value_mask = estimate(trajectory, Values(read.at_actions, final), settings)
        advantages.append(advantage)
        returns.append(target)
        value_masks.append(value_mask & keep)
    return Credit(advantages, policy_weights, returns, aggregation_weights(value_masks, "token_mean"))


def _rewards(trajectory: BatchTrajectory) -> Tensor:
    # The verdict sits on the last action token: on a later observation it would be discounted, or lost.
    rewards = trajectory.rewards.double()
    rewards[-1] += trajectory.reward or 0.0
    return rewards


def _policy_lambda(length: int, settings: AlgorithmConfig) -> float:
    return length_adaptive_lambda(length) if settings.gae_lambda == "length_adaptive" else settings.gae_lambda


def _token_credit(trajectory: BatchTrajectory, read: Values, settings: AlgorithmConfig) -> tuple[Tensor, Tensor, Tensor]:
    values, rewards = read.at_actions.double(), _rewards(trajectory)
    advantage, target = _estimate(rewards, values, read.final, trajectory.seams, settings)
    return advantage, target, torch.ones(trajectory.n_actions, dtype=torch.bool)


def _turn_credit(trajectory: BatchTrajectory, read: Values, settings: AlgorithmConfig) -> tuple[Tensor, Tensor, Tensor]:
    turn_id = trajectory.turn_id
    starts = turn_starts(turn_id)
    seams = sum_by_turn(trajectory.seams.int(), turn_id).bool()
    rewards = sum_by_turn(_rewards(trajectory), turn_id)
    advantage, target = _estimate(rewards, read.at_actions[starts].double(), read.final, seams, settings)
    value_mask = torch.zeros(trajectory.n_actions, dtype=torch.bool)
    value_mask[starts] = True
    return broadcast_turns(advantage, turn_id), broadcast_turns(target, turn_id), value_mask


def _estimate(rewards: Tensor, values: Tensor, final: float, seams: Tensor, settings: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Advantages with the policy's lambda, targets with the critic's (decoupled GAE: VC-PPO, SAO); float32."""
    assert settings.critic is not None
    lam = _policy_lambda(len(rewards), settings)
    advantage = gae(rewards, values, final_value=final, gamma=settings.gamma, lam=lam, seams=seams)
    critic_lam = settings.critic.gae_lambda
    target = values + gae(rewards, values, final_value=final, gamma=settings.gamma, lam=critic_lam, seams=seams)
    return advantage.float(), target.float()


def _group_advantages(batch: Batch, kept: Sequence[bool], settings: AlgorithmConfig) -> list[Tensor]:
    members = [t for t, keep in zip(batch.trajectories, kept, strict=True) if keep]
    totals = [float(_rewards(t).sum()) for t in members]
    groups = [t.group or t.id for t in members]
    relative = dict(zip((t.id for t in members), group_relative(totals, groups, divide_by_std=settings.group_std), strict=True))
    return [torch.full((t.n_actions,), float(relative.get(t.id, 0.0))) for t in batch.trajectories]
