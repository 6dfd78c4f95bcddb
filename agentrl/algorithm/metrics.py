"""Off-policy and critic metrics. A mean is a (numerator, denominator) pair: pairs add over ranks, means never do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_MAX_EXPONENT = 700.0


class Ratio(NamedTuple):
    """A mean in parts. ``value`` is None when there is nothing to average."""

    numerator: float
    denominator: float

    @property
    def value(self) -> float | None:
        return self.numerator / self.denominator if self.denominator else None


def masked_mean(per_token: Tensor, mask: Tensor) -> Ratio:
    """Sum over the masked positions and their count, in float64. Values outside the mask are never read into the sum."""
    selected = per_token[mask.bool()].double()
    return Ratio(float(selected.sum()), float(len(selected)))


class KL(NamedTuple):
    """Estimators of KL(old || new) from samples of old (Schulman 2020): k1 unbiased, k2 of low variance, k3 both."""

    k1: Ratio
    k2: Ratio
    k3: Ratio


def kl_old_new(logp_old: Tensor, logp_new: Tensor, mask: Tensor) -> KL:
    """k1 = old - new, k2 = (new - old)^2 / 2, k3 = exp(new - old) - 1 - (new - old); [n] each."""
    difference = (logp_new - logp_old).detach().double()
    k3 = torch.expm1(difference) - difference
    return KL(masked_mean(-difference, mask), masked_mean(0.5 * difference**2, mask), masked_mean(k3, mask))


def effective_sample_size(log_weights: Tensor) -> float | None:
    """(sum w)^2 / (n sum w^2) of importance weights given as logs [n]: 1 when all are equal; None without weights.

    Over the whole batch: weights are scaled by their largest against overflow, so parts of a batch don't add.
    """
    if not len(log_weights):
        return None
    logs = log_weights.detach().double()
    weights = (logs - logs.max()).exp()
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


class OffPolicy(NamedTuple):
    """Distance from the sampler: ``chi2`` = mean r^2 - 1, ``m2`` = mean (log r)^2, ``ppl_ratio`` = exp(-mean log r)."""

    chi2: float | None
    m2: float | None
    ppl_ratio: float | None


def off_policy(log_ratio: Tensor, mask: Tensor) -> OffPolicy:
    """From log-ratios policy - sampler [n] over the masked tokens of the whole batch; None without tokens."""
    logs = log_ratio.detach().double()
    squared = masked_mean((2 * logs).exp(), mask).value
    m2, mean = masked_mean(logs**2, mask).value, masked_mean(logs, mask).value
    if squared is None or mean is None:
        return OffPolicy(None, None, None)
    return OffPolicy(squared - 1, m2, math.exp(min(-mean, _MAX_EXPONENT)))


LAG_BUCKETS = ((0, 0), (1, 1), (2, 3), (4, 7), (8, None))
"""First and last lag of each bucket, in policy updates."""


def kept_by_lag(kept: Tensor, token_lag: Tensor, mask: Tensor) -> dict[str, Ratio]:
    """Share of tokens that still have a gradient, by their lag; [n] each. Buckets without tokens are absent."""
    rates = {}
    for first, last in LAG_BUCKETS:
        inside = mask.bool() & (token_lag >= first)
        if last is not None:
            inside &= token_lag <= last
        rate = masked_mean(kept.float(), inside)
        if rate.denominator:
            rates[f"{first}" if last == first else f"{first}_{last}" if last is not None else f"{first}_up"] = rate
    return rates


class Cosine(NamedTuple):
    """Products of two gradients over a part of the parameters; those of disjoint parts add up."""

    product: float
    first: float
    second: float

    @property
    def value(self) -> float | None:
        scale = math.sqrt(self.first * self.second)
        return self.product / scale if scale else None


def gradient_cosine(first: Sequence[Tensor], second: Sequence[Tensor]) -> Cosine:
    """<a, b>, <a, a> and <b, b> over the given tensors, in float64; each parameter must be counted once over all ranks."""
    pairs = [(a.double(), b.double()) for a, b in zip(first, second, strict=True)]
    return Cosine(
        sum(float((a * b).sum()) for a, b in pairs),
        sum(float((a * a).sum()) for a, _ in pairs),
        sum(float((b * b).sum()) for _, b in pairs),
    )


class MaskedShares(NamedTuple):
    """Shares of tokens whose ratio lies at or beyond a bound, by side and by the sign of the advantage."""

    high: Ratio
    low: Ratio
    high_positive: Ratio
    high_negative: Ratio
    low_positive: Ratio
    low_negative: Ratio


def masked_shares(log_ratio: Tensor, advantages: Tensor, mask: Tensor, kept: Tensor) -> MaskedShares:
    """Split the tokens that a strict dual-sided mask dropped (``~kept``) by side; denominators are all tokens of ``mask``."""
    dropped = ~kept.bool()
    high, low = dropped & (log_ratio > 0), dropped & (log_ratio <= 0)
    positive = advantages > 0

    def share(chosen: Tensor) -> Ratio:
        return masked_mean(chosen.float(), mask)

    return MaskedShares(
        share(high),
        share(low),
        share(high & positive),
        share(high & ~positive),
        share(low & positive),
        share(low & ~positive),
    )


def explained_variance(returns: Tensor, values: Tensor, mask: Tensor) -> float | None:
    """1 - Var(G - V) / Var(G), ddof 0, over the masked positions of the whole batch; None when Var(G) is 0 or n < 2."""
    chosen = mask.bool()
    target, error = returns[chosen].double(), (returns - values)[chosen].double()
    if len(target) < 2:
        return None
    variance = float(target.var(correction=0))
    return 1 - float(error.var(correction=0)) / variance if variance else None
