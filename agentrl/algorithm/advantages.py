"""Generalised advantage estimation over actions or turns, for whole batches at once.

Observations cost nothing: the carry crosses a gap between two actions with exactly one factor gamma * lambda, however long the
gap is, and what a critic says inside the gap has no influence. Recursions run in float64 and return the dtype they were given.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LENGTH_ADAPTIVE_ALPHA = 1.5
"""SAO section 4.1; VAPO uses 0.05."""

_ONE_BLOCK = 256
"""Positions up to which blocks save nothing."""


def length_adaptive_lambda(length: int, alpha: float = LENGTH_ADAPTIVE_ALPHA) -> float:
    """lambda = clamp(1 - 1/(alpha * length), 0, 1) (VAPO, SAO); ``length``: action tokens or turns of the whole trajectory."""
    if length <= 0:
        return 0.0
    return min(max(1 - 1 / (alpha * length), 0.0), 1.0)


def discounted_sums(terms: Tensor, decay: Tensor) -> Tensor:
    """y_j = terms_j + decay_j * y_{j+1}, with y = 0 after the last; along the last dimension of [B, n] -> [B, n].

    Long rows are cut into blocks of about sqrt(n); all blocks are summed at once, then what each block hands to the one before
    it, so n steps become about 2 sqrt(n) vectorised ones.
    """
    rows, length = terms.shape
    if not length:
        return terms.clone()
    size = length if length <= _ONE_BLOCK else math.isqrt(length - 1) + 1
    blocks = -(-length // size)
    padding = (0, blocks * size - length)
    # [position in block, row, block]: each step of the inner loop reads contiguous memory.
    local = torch.nn.functional.pad(terms, padding).view(rows, blocks, size).permute(2, 0, 1).contiguous()
    through = torch.nn.functional.pad(decay, padding).view(rows, blocks, size).permute(2, 0, 1).contiguous()
    for j in reversed(range(size - 1)):
        local[j] += through[j] * local[j + 1]
        if blocks > 1:
            through[j] *= through[j + 1]
    if blocks == 1:
        return local.permute(1, 2, 0).reshape(rows, length)
    first, whole = local[0].t().contiguous(), through[0].t().contiguous()
    for b in reversed(range(blocks - 1)):
        first[b] += whole[b] * first[b + 1]
    following = torch.zeros_like(first)
    following[:-1] = first[1:]
    return (local + through * following.t()).permute(1, 2, 0).reshape(rows, blocks * size)[:, :length]


def windowed_sums(terms: Tensor, decay: Tensor, window: int) -> Tensor:
    """`discounted_sums` cut off after ``window`` terms: y_j = sum over i < window of terms_{j+i} times the decays between."""
    total = terms
    for _ in range(min(window, terms.shape[-1]) - 1):
        following = torch.nn.functional.pad(total[:, 1:], (0, 1))
        total = terms + decay * following
    return total


def td_errors(rewards: Tensor, values: Tensor, actions: Tensor, *, final_values: Tensor, gamma: float | Tensor) -> Tensor:
    """r_j + gamma V(next action's state) - V_j at actions, 0 elsewhere; [B, n] each, ``final_values`` [B], ``gamma`` broadcast.

    The next state of the last action has ``final_values``: 0 when the episode terminated, the bootstrap value when it was cut.
    """
    length = values.shape[1]
    places = torch.arange(length, device=values.device).expand_as(actions)
    next_action = torch.where(actions, places, length).flip(1).cummin(1).values.flip(1)
    next_action = torch.nn.functional.pad(next_action[:, 1:], (0, 1), value=length)
    following = torch.cat([values, final_values.to(values).unsqueeze(1)], 1).gather(1, next_action)
    return torch.where(actions, rewards + gamma * following - values, 0.0)


def skip_observation_gae(
    rewards: Tensor,
    values: Tensor,
    actions: Tensor,
    *,
    final_values: Tensor,
    gamma: float,
    lam: float | Tensor,
    seams: Tensor | None = None,
    window: int | None = None,
    clamp: float | None = None,
) -> Tensor:
    """A_j = delta_j + gamma lambda A_{next action} (Schulman et al. 2016; over actions only: SAO eq. 4-5); [B, n] -> [B, n].

    ``actions`` bool [B, n] marks what counts: observations and padding are skipped and get 0, whatever they hold. ``lam`` is
    one number or one a row [B]. ``seams`` bool [B, n] marks the last action before a rewritten context: no environment step
    lies between it and the next, so gamma and lambda are 1 there. ``window`` cuts the sum off after that many actions (TD-clip:
    1 is TD(0); with lambda 1 it is n-step TD); ``clamp`` bounds every TD error to +-clamp, which is another operation. The
    value target is the result plus ``values``.
    """
    wide = torch.float64
    lam = torch.as_tensor(lam, dtype=wide, device=values.device).reshape(-1, 1).expand(len(values), 1)
    step_gamma: Tensor = torch.full((1, 1), gamma, dtype=wide, device=values.device).expand(values.shape)
    decay = (gamma * lam).expand(values.shape)
    if seams is not None:
        step_gamma, decay = torch.where(seams, 1.0, step_gamma), torch.where(seams, 1.0, decay)
    deltas = td_errors(rewards.to(wide), values.to(wide), actions, final_values=final_values, gamma=step_gamma)
    if clamp is not None:
        deltas = deltas.clamp(-clamp, clamp)
    if window is None:
        summed = discounted_sums(deltas, torch.where(actions, decay, 1.0))
    else:
        summed = _windowed(deltas, decay, actions, window)
    return torch.where(actions, summed, 0.0).to(values.dtype)


def _windowed(deltas: Tensor, decay: Tensor, actions: Tensor, window: int) -> Tensor:
    # A window counts actions, so the gaps are taken out first.
    order = actions.logical_not().sort(dim=1, stable=True).indices
    summed = windowed_sums(deltas.gather(1, order), decay.gather(1, order), window)
    return torch.zeros_like(deltas).scatter(1, order, summed)


def gae(
    rewards: Tensor,
    values: Tensor,
    *,
    final_value: float,
    gamma: float,
    lam: float,
    seams: Tensor | None = None,
    window: int | None = None,
    clamp: float | None = None,
) -> Tensor:
    """`skip_observation_gae` of one row without gaps: [n] -> [n], over actions or over turns."""
    return skip_observation_gae(
        rewards.unsqueeze(0),
        values.unsqueeze(0),
        torch.ones(1, len(values), dtype=torch.bool),
        final_values=torch.tensor([final_value], dtype=torch.float64),
        gamma=gamma,
        lam=lam,
        seams=None if seams is None else seams.unsqueeze(0),
        window=window,
        clamp=clamp,
    )[0]
