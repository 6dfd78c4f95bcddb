"""Advantages: generalised advantage estimation over actions or turns, and group-relative baselines.

All arrays hold actions only. Observation tokens are left out before anything is computed here, so a gap between two actions
costs exactly one factor gamma * lambda, however long it is. Recursions run in float64 and return the dtype they were given.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

LENGTH_ADAPTIVE_ALPHA = 1.5
"""SAO section 4.1; VAPO uses 0.05."""


def length_adaptive_lambda(length: int, alpha: float = LENGTH_ADAPTIVE_ALPHA) -> float:
    """lambda = clamp(1 - 1/(alpha * length), 0, 1) (VAPO, SAO); ``length``: action tokens or turns of the whole trajectory."""
    if length <= 0:
        return 0.0
    return min(max(1 - 1 / (alpha * length), 0.0), 1.0)


def gae(
    rewards: Tensor, values: Tensor, *, final_value: float, gamma: float, lam: float, seams: Tensor | None = None
) -> Tensor:
    """A_j = r_j + gamma V_{j+1} - V_j + gamma lambda A_{j+1} (Schulman et al. 2016), over actions or turns; [n] -> [n].

    ``final_value`` is V after the last one: 0 when the episode terminated, the bootstrap value when it was cut off.
    ``seams`` bool [n] marks the last action before a rewritten context: no environment step lies between it and the next, so
    gamma and lambda are 1 there. The value target is the result plus ``values``.
    """
    reward_list, value_list = rewards.tolist(), values.tolist()
    seam_list = [False] * len(reward_list) if seams is None else seams.tolist()
    advantages = [0.0] * len(reward_list)
    next_value, carry = float(final_value), 0.0
    for j in reversed(range(len(reward_list))):
        step_gamma, step_lambda = (1.0, 1.0) if seam_list[j] else (gamma, lam)
        carry = reward_list[j] + step_gamma * next_value - value_list[j] + step_gamma * step_lambda * carry
        advantages[j] = carry
        next_value = value_list[j]
    return torch.tensor(advantages, dtype=values.dtype)


def turn_starts(turn_id: Tensor) -> Tensor:
    """Indices of the first action token of each turn; ``turn_id`` int [n] counts 0..K-1 without gaps and never decreases."""
    first = torch.ones(len(turn_id), dtype=torch.bool)
    first[1:] = turn_id[1:] != turn_id[:-1]
    return first.nonzero().squeeze(-1)


def sum_by_turn(per_token: Tensor, turn_id: Tensor) -> Tensor:
    """[n] -> [K]: the sum over each turn's action tokens."""
    turns = int(turn_id[-1]) + 1 if len(turn_id) else 0
    return torch.zeros(turns, dtype=per_token.dtype).index_add_(0, turn_id, per_token)


def broadcast_turns(per_turn: Tensor, turn_id: Tensor) -> Tensor:
    """[K] -> [n]: each action token gets its turn's number; exact, since log pi(turn) is the sum over its tokens."""
    return per_turn[turn_id]


def group_relative(rewards: Sequence[float], groups: Sequence[Hashable], *, divide_by_std: bool, eps: float = 1e-6) -> Tensor:
    """Reward minus the mean of its group, optionally over (std + eps) with ddof 1 (GRPO; without std Dr. GRPO); float64 [m].

    Members are found by group id, never by position. A group of equal rewards and a group of one give exact zeros: there is no
    baseline to compare with.
    """
    result = torch.zeros(len(rewards), dtype=torch.float64)
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    for indices in members.values():
        own = torch.tensor([rewards[i] for i in indices], dtype=torch.float64)
        if len(indices) < 2 or bool((own == own[0]).all()):
            continue
        centred = own - own.mean()
        result[indices] = centred / (own.std(correction=1) + eps) if divide_by_std else centred
    return result
