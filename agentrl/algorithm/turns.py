"""Turns and other units of credit: from tokens to units and back.

A unit is a turn, or what the environment marked: several turns, or part of one. ``unit_id`` int64 [n] numbers the unit of each
action token 0..K-1, without gaps and never decreasing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from agentrl.algorithm.advantages import discounted_sums, td_errors

UnitValue = Literal["first", "mean", "last"]


def unit_ids(turn_id: Tensor, starts: Tensor | None = None) -> Tensor:
    """The unit of each action token; int64 [n].

    Without marks a unit is a turn. ``starts`` bool [n] marks the first token of each unit instead, wherever turns begin; the
    first token always starts one.
    """
    if starts is None or not len(turn_id):
        return turn_id
    begins = starts.bool().clone()
    begins[0] = True
    return begins.cumsum(0) - 1


def turn_starts(unit_id: Tensor) -> Tensor:
    """Indices of the first action token of each unit."""
    first = torch.ones(len(unit_id), dtype=torch.bool)
    first[1:] = unit_id[1:] != unit_id[:-1]
    return first.nonzero().squeeze(-1)


def turn_ends(unit_id: Tensor) -> Tensor:
    """Indices of the last action token of each unit."""
    last = torch.ones(len(unit_id), dtype=torch.bool)
    last[:-1] = unit_id[1:] != unit_id[:-1]
    return last.nonzero().squeeze(-1)


def sum_by_turn(per_token: Tensor, unit_id: Tensor) -> Tensor:
    """[n] -> [K]: the sum over each unit's action tokens."""
    units = int(unit_id[-1]) + 1 if len(unit_id) else 0
    return torch.zeros(units, dtype=per_token.dtype).index_add_(0, unit_id, per_token)


def broadcast_turns(per_unit: Tensor, unit_id: Tensor) -> Tensor:
    """[K] -> [n]: each action token gets its unit's number; exact, since log pi(turn) is the sum over its tokens."""
    return per_unit[unit_id]


def unit_values(values: Tensor, unit_id: Tensor, how: UnitValue = "first") -> Tensor:
    """V of each unit from the values of its tokens; [n] -> [K].

    ``first`` is the state that the unit acts from: everything before its first token, the latest observation included. ``mean``
    and ``last`` are the step-level variants of SAO's appendix A; they look at tokens of the unit itself.
    """
    if how == "first":
        return values[turn_starts(unit_id)]
    if how == "last":
        return values[turn_ends(unit_id)]
    return sum_by_turn(values, unit_id) / sum_by_turn(torch.ones_like(values), unit_id)


def local_advantages(unit_values: Tensor, final_value: float) -> Tensor:
    """V(after the unit and the observation it led to) - V(before it): what each unit changed in the critic's eyes; [K] -> [K].

    ``final_value``: V after everything; 0 when the episode terminated.
    """
    after = torch.cat([unit_values[1:], torch.tensor([final_value], dtype=unit_values.dtype)])
    return after - unit_values


def hierarchical_advantages(
    unit_advantages: Tensor,
    unit_values: Tensor,
    token_values: Tensor,
    unit_id: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    token_rewards: Tensor | None = None,
) -> Tensor:
    """Token-level GAE inside each unit, whose end is worth A + V of the unit; [K], [K], [n] -> [n].

    With gamma and lambda 1 the first token of a unit gets exactly the unit's advantage; with those of the units 1 too, every
    token gets return - V. ``token_rewards`` [n] are those not already in the unit's reward (normally none).
    """
    end_value = unit_advantages + unit_values
    rewards = torch.zeros_like(token_values) if token_rewards is None else token_rewards.clone()
    rewards[turn_ends(unit_id)] += end_value
    return _inside_units(rewards, token_values, unit_id, gamma, lam)


def advantage_initialised(
    unit_advantages: Tensor, token_values: Tensor, unit_id: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> Tensor:
    """Another mapping of the field: the last token of a unit is given the unit's advantage and the recursion goes on from it.

    It counts the change of value inside a unit twice; kept for comparison. [K], [n] -> [n].
    """
    rewards = torch.zeros_like(token_values)
    ends = turn_ends(unit_id)
    rewards[ends] = unit_advantages + token_values[ends]
    return _inside_units(rewards, token_values, unit_id, gamma, lam)


def _inside_units(rewards: Tensor, values: Tensor, unit_id: Tensor, gamma: float, lam: float) -> Tensor:
    """GAE that ends with every unit: nothing is handed from a unit's first token to the unit before it."""
    inside = torch.ones(1, len(unit_id), dtype=torch.float64)
    inside[0, turn_ends(unit_id)] = 0.0
    deltas = td_errors(
        rewards.double().unsqueeze(0),
        values.double().unsqueeze(0),
        torch.ones_like(inside, dtype=torch.bool),
        final_values=torch.zeros(1, dtype=torch.float64),
        gamma=gamma * inside,
    )
    return discounted_sums(deltas, gamma * lam * inside)[0].to(values.dtype)
