"""Baselines from a group of trajectories on one task, without a critic; float64.

Members are found by group id, never by position. A group of equal rewards and a group of one give exact zeros: there is no
baseline to compare with.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

STD_EPS = 1e-6


def group_relative(
    rewards: Sequence[float], groups: Sequence[Hashable], *, divide_by_std: bool, ddof: int = 1, eps: float = STD_EPS
) -> Tensor:
    """Reward minus the mean of its group, optionally over (std + eps) (GRPO; without std Dr. GRPO); [m].

    ``ddof``: 1 is what torch.std and most trainers compute, 0 is the formula of the population.
    """
    result = torch.zeros(len(rewards), dtype=torch.float64)
    for indices in _members(groups).values():
        own = torch.tensor([rewards[i] for i in indices], dtype=torch.float64)
        if len(indices) < 2 or bool((own == own[0]).all()):
            continue
        centred = own - own.mean()
        result[indices] = centred / (own.std(correction=ddof) + eps) if divide_by_std else centred
    return result


def leave_one_out(rewards: Sequence[float], groups: Sequence[Hashable]) -> Tensor:
    """Reward minus the mean of the others of its group (RLOO, Ahmadian et al. 2024); [m]."""
    centred = group_relative(rewards, groups, divide_by_std=False)
    for indices in _members(groups).values():
        if len(indices) > 1:
            centred[indices] *= len(indices) / (len(indices) - 1)
    return centred


def uniform_groups(rewards: Sequence[float], groups: Sequence[Hashable]) -> set[Hashable]:
    """Groups whose members all got the same reward, groups of one included: nothing can be learned from them (DAPO)."""
    return {group for group, indices in _members(groups).items() if len({rewards[i] for i in indices}) == 1}


def turn_group_relative(
    turn_rewards: Sequence[Sequence[float]],
    outcomes: Sequence[float],
    groups: Sequence[Hashable],
    *,
    gamma: float,
    divide_by_std: bool = True,
    ddof: int = 1,
    eps: float = STD_EPS,
) -> list[Tensor]:
    """Turn-level group-relative advantages; per trajectory [K].

    A_k = z_k + gamma A_{k+1}, where z_k is the turn's reward relative to the group's members that have a turn k, and the last
    turn adds the outcome relative to all members. With two turns, rewards only in the first and gamma = alpha this is MT-GRPO
    (arXiv 2505.11821 eq. 5-6): A_1 = A^I + alpha A^O, A_2 = A^O. Members may have different numbers of turns (ragged form).
    """
    relative = partial(group_relative, divide_by_std=divide_by_std, ddof=ddof, eps=eps)
    total = relative(outcomes, groups)
    result = [torch.zeros(len(rewards), dtype=torch.float64) for rewards in turn_rewards]
    for k in range(max(map(len, turn_rewards), default=0)):
        having = [i for i, rewards in enumerate(turn_rewards) if len(rewards) > k]
        z = relative([turn_rewards[i][k] for i in having], [groups[i] for i in having])
        for i, own in zip(having, z.tolist(), strict=True):
            result[i][k] = own
    for own, outcome in zip(result, total.tolist(), strict=True):
        carry = outcome
        for k in reversed(range(len(own))):
            carry = float(own[k]) + (carry if k == len(own) - 1 else gamma * carry)
            own[k] = carry
    return result


def anchor_relative(
    episode_rewards: Sequence[float],
    step_returns: Sequence[Sequence[float]],
    anchors: Sequence[Sequence[Hashable]],
    groups: Sequence[Hashable],
    *,
    weight: float = 1.0,
    divide_by_std: bool = True,
    ddof: int = 1,
    eps: float = STD_EPS,
) -> list[Tensor]:
    """GiGPO (arXiv 2505.10978): A = A^E + weight * A^S; per trajectory [K].

    A^E compares whole episodes of a group. A^S compares the discounted returns of steps that acted from the same state:
    ``anchors`` names the state before each step. A state that was met once adds 0.
    """
    relative = partial(group_relative, divide_by_std=divide_by_std, ddof=ddof, eps=eps)
    episode = relative(episode_rewards, groups)
    flat = [value for returns in step_returns for value in returns]
    states = [(group, anchor) for group, own in zip(groups, anchors, strict=True) for anchor in own]
    step = relative(flat, states)
    parts = step.split([len(returns) for returns in step_returns])
    return [float(whole) + weight * part for whole, part in zip(episode, parts, strict=True)]


def _members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members
