"""Per-token losses and their aggregation over a global denominator.

A loss names the log-prob it divides by. Denominators count the loss mask over the whole batch before any ratio decision: a
token that a ratio masks contributes 0 to the numerator and stays in the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "seq_mean_token_mean"]

_MAX_LOG_RATIO = 20.0


class Loss(NamedTuple):
    """``per_token`` [n] with gradient; ``kept`` bool [n]: the token has a gradient."""

    per_token: Tensor
    kept: Tensor


def ratio_kept(logp: Tensor, logp_rollout: Tensor, *, low: float, high: float) -> Tensor:
    """Whether low < exp(logp - logp_rollout) < high, strictly; bool [n].

    Decided in log space with both bounds rounded to the dtype of the difference: a ratio would round the edge either way.
    Bounds are given as written (0.2, not 1 - 0.8, which is 0.19999999999999996 in binary).
    """
    difference = (logp - logp_rollout).detach()
    log_low, log_high = (
        torch.tensor(math.log(bound), dtype=difference.dtype, device=difference.device) for bound in (low, high)
    )
    return (difference > log_low) & (difference < log_high)


def dis_loss(logp: Tensor, *, logp_rollout: Tensor, advantages: Tensor, low: float, high: float) -> Loss:
    """Dual-sided importance sampling (SAO eq. 1-3): -sg(f(r)) A logp with r = exp(logp - logp_rollout).

    f(r) = r strictly inside the bounds, else 0. The only denominator is the log-prob recorded at sampling; there is no old
    policy in this loss. [n] each.
    """
    kept = ratio_kept(logp, logp_rollout, low=low, high=high)
    ratio = (logp - logp_rollout).detach().exp()
    # Both the coefficient and the product are selected: 0 * (-inf) would be NaN, forward and backward.
    coefficient = torch.where(kept, ratio * advantages, 0.0)
    return Loss(torch.where(kept, -coefficient * logp, 0.0), kept)


def ppo_clip_loss(logp: Tensor, *, logp_behaviour: Tensor, advantages: Tensor, low: float, high: float) -> Loss:
    """-min(r A, clip(r, low, high) A), r = exp(logp - logp_behaviour) (Schulman et al. 2017). [n] each."""
    ratio = (logp - logp_behaviour).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    return Loss(per_token, ~clipped.detach())


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """(V - G)^2 / 2 per position; targets carry no gradient."""
    return 0.5 * (values - targets.detach()) ** 2


class Weights(NamedTuple):
    """``per_token``: one [n] tensor per sequence; loss = sum(weight * loss) / denominator, and 0 means nothing to train on."""

    per_token: list[Tensor]
    denominator: float


def aggregation_weights(masks: Sequence[Tensor], mode: Aggregation) -> Weights:
    """Turn the loss masks of ALL sequences of a step into per-token weights and the global denominator.

    ``token_mean``: every token counts once, divided by the tokens of the batch. ``seq_mean_token_mean``: every sequence with a
    token counts once, divided by their number. Sums of weighted losses may then be split over ranks and micro-batches at will.
    """
    counts = [int(mask.sum()) for mask in masks]
    if mode == "token_mean":
        return Weights([mask.float() for mask in masks], float(sum(counts)))
    weights = [mask.float() / max(count, 1) for mask, count in zip(masks, counts, strict=True)]
    return Weights(weights, float(sum(1 for count in counts if count)))
