"""Importance ratios between two policies, and what is made of them: masks, bounded weights, gates over whole sequences.

Every decision is taken in log space, without gradient. A log-ratio is log pi(a) of the policy in the numerator minus that of
the policy in the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Ratios are formed from log-ratios clamped to +-20: exp does not overflow, and no bound lies out there."""


def ratio(log_ratio: Tensor) -> Tensor:
    """exp of the clamped log-ratio; keeps the gradient."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def strictly_inside(log_ratio: Tensor, *, low: float, high: float) -> Tensor:
    """low < ratio < high, strictly; bool.

    Both bounds are rounded to the dtype of the log-ratio: a ratio would round the edge either way. Bounds are given as written
    (0.2, not 1 - 0.8, which is 0.19999999999999996 in binary). NaN counts as inside: a mask must not hide it.
    """
    difference = log_ratio.detach()
    log_low, log_high = _log_bounds(difference, low, high)
    return ~((difference <= log_low) | (difference >= log_high))


def inside(log_ratio: Tensor, *, low: float, high: float) -> Tensor:
    """low <= ratio <= high, bounds included (IcePop); bool. NaN counts as inside."""
    difference = log_ratio.detach()
    log_low, log_high = _log_bounds(difference, low, high)
    return ~((difference < log_low) | (difference > log_high))


def capped_weight(log_ratio: Tensor, *, cap: float | None) -> Tensor:
    """min(ratio, cap) without gradient (truncated importance sampling); ``cap`` None: the ratio itself."""
    weight = ratio(log_ratio.detach())
    return weight if cap is None else weight.clamp(max=cap)


def masked_weight(log_ratio: Tensor, *, low: float, high: float) -> Tensor:
    """The ratio where it lies in [low, high], else 0; without gradient (masked importance sampling, IcePop)."""
    return torch.where(inside(log_ratio, low=low, high=high), ratio(log_ratio.detach()), 0.0)


def per_sequence(values: Sequence[Tensor], masks: Sequence[Tensor], *, mean: bool) -> Tensor:
    """Per sequence the sum or the mean over its masked tokens, float64 [m] without gradient; 0 without tokens.

    Of log-ratios: the log of the product of a sequence's ratios, or of their geometric mean. Products discriminate against long
    sequences: 1.1 ** 100 is 13,781.
    """
    chosen = [x.detach()[m.bool()].double() for x, m in zip(values, masks, strict=True)]
    sums = [float(x.sum()) / (max(len(x), 1) if mean else 1) for x in chosen]
    return torch.tensor(sums, dtype=torch.float64)


def bernoulli_kl(logp_behaviour: Tensor, logp_current: Tensor) -> Tensor:
    """KL between "this token or another" under the two policies (FlashREINFORCE); float64, without gradient.

    p log(p/q) + (1-p) log((1-p)/(1-q)) with p the behaviour's probability of the sampled token and q the current one.
    """
    log_p, log_q = logp_behaviour.detach().double().clamp(max=0.0), logp_current.detach().double().clamp(max=0.0)
    p, q = log_p.exp(), log_q.exp()
    tiny = torch.finfo(torch.float64).tiny
    rest = torch.xlogy(1 - p, (1 - p).clamp(min=tiny)) - torch.xlogy(1 - p, (1 - q).clamp(min=tiny))
    return p * (log_p - log_q) + rest


def _log_bounds(like: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    logs = (math.log(bound) if bound > 0 else -math.inf for bound in (low, high))
    log_low, log_high = (torch.tensor(log, dtype=like.dtype, device=like.device) for log in logs)
    return log_low, log_high
