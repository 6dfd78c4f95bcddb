"""The reward of each action token of a trajectory."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algorithm.shaping import soft_overlong_penalty
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import BatchTrajectory


def outcome(trajectory: BatchTrajectory, settings: AlgorithmConfig) -> float:
    """The verdict and what length costs; 0 without a verdict."""
    verdict = trajectory.reward or 0.0
    if settings.overlong_limit is None:
        return verdict
    return verdict + soft_overlong_penalty(trajectory.n_actions, limit=settings.overlong_limit, cache=settings.overlong_cache)


def turn_rewards(trajectory: BatchTrajectory, penalty: Tensor | None = None) -> Tensor:
    """float64 [n]: rewards of turns on their last tokens, minus ``penalty`` [n] on each token; without the outcome."""
    rewards = trajectory.rewards.double()
    return rewards if penalty is None else rewards - penalty.to(torch.float64)


def with_outcome(rewards: Tensor, trajectory: BatchTrajectory, settings: AlgorithmConfig) -> Tensor:
    """``rewards`` [n] and the outcome on the last action token: on a later observation it would be discounted, or lost."""
    whole = rewards.clone()
    whole[-1] += outcome(trajectory, settings)
    return whole
