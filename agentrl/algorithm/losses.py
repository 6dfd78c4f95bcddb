"""Per-token losses of the policy and of the critic; [n] each, without any averaging.

Each loss names the log-prob it divides by, as a keyword that no other loss shares a meaning with: ``logp_rollout`` was recorded
at sampling and never recomputed; ``logp_proximal`` is that of the trainer's weights when the batch arrived; ``logp_behaviour``
is either, chosen by the caller. Advantages and weights carry no gradient. A token that a ratio masks contributes 0 here and
stays in the denominator (`agentrl.algorithm.denominators`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.algorithm.ratios import capped_weight, ratio, strictly_inside


class Loss(NamedTuple):
    """``per_token`` [n] with gradient; ``kept`` bool [n]: the token has a gradient."""

    per_token: Tensor
    kept: Tensor


def dis_loss(logp: Tensor, *, logp_rollout: Tensor, advantages: Tensor, low: float, high: float) -> Loss:
    """Dual-sided importance sampling (SAO eq. 1-3): -sg(f(r)) A logp with r = exp(logp - logp_rollout).

    f(r) = r strictly inside the bounds, else 0. The only denominator is the log-prob recorded at sampling; there is no old
    policy in this loss.
    """
    kept = strictly_inside(logp - logp_rollout, low=low, high=high)
    exact = (logp - logp_rollout).detach().exp()
    return _score(logp, torch.where(kept, exact, 0.0), advantages, kept)


def reinforce_loss(logp: Tensor, *, logp_rollout: Tensor, advantages: Tensor, cap: float | None) -> Loss:
    """-sg(min(r, cap)) A logp: REINFORCE with truncated importance sampling; ``cap`` None: with the plain ratio."""
    return _score(logp, capped_weight(logp - logp_rollout, cap=cap), advantages, _possible(logp))


def cispo_loss(logp: Tensor, *, logp_behaviour: Tensor, advantages: Tensor, low: float, high: float) -> Loss:
    """-sg(clip(r, low, high)) A logp (MiniMax-M1): clipped tokens still train, with a bounded weight."""
    weight = ratio((logp - logp_behaviour).detach()).clamp(low, high)
    return _score(logp, weight, advantages, _possible(logp))


def ppo_clip_loss(
    logp: Tensor,
    *,
    logp_behaviour: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual_clip: float | None = None,
) -> Loss:
    """-min(r A, clip(r, low, high) A), r = exp(logp - logp_behaviour) (Schulman et al. 2017).

    ``dual_clip`` c bounds the loss by -c A where A < 0 (Ye et al. 2020): a token with a huge ratio stops training.
    """
    return _clipped(ratio(logp - logp_behaviour), advantages, low, high, dual_clip)


def decoupled_ppo_loss(
    logp: Tensor,
    *,
    logp_proximal: Tensor,
    weight: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual_clip: float | None = None,
) -> Loss:
    """sg(weight) times the clipped loss of u = exp(logp - logp_proximal) (Hilton et al. 2022; AReaL eq. 5).

    The clip bounds the step away from ``logp_proximal``; ``weight`` corrects for who sampled: exp(logp_proximal -
    logp_rollout), or `capped_weight` or `masked_weight` of that log-ratio. A weight of 0 masks the token.
    """
    inner = _clipped(ratio(logp - logp_proximal), advantages, low, high, dual_clip)
    used = weight.detach() != 0
    return Loss(torch.where(used, weight.detach() * inner.per_token, 0.0), inner.kept & used)


def gspo_loss(
    logp: Tensor, *, sequence_log_ratio: Tensor, advantages: Tensor, low: float, high: float, dual_clip: float | None = None
) -> Loss:
    """-min(s A, clip(s, low, high) A) with s = exp(mean log-ratio of the sequence) (GSPO, arXiv 2507.18071).

    ``sequence_log_ratio`` [n] repeats the sequence's mean log-ratio, at the current weights, on each of its tokens. The
    gradient goes through sg(s) exp(logp - sg(logp)), so that every token of a sequence is kept or clipped together.
    """
    own = ratio(sequence_log_ratio.detach()) * (logp - logp.detach()).exp()
    return _clipped(own, advantages, low, high, dual_clip)


def interpolated_proximal(logp: Tensor, *, logp_rollout: Tensor, token_lag: Tensor) -> Tensor:
    """Approximate log-prob of the proximal policy without a forward pass (A-3PO), without gradient.

    log pi_prox = log pi_rollout + alpha (logp - log pi_rollout), alpha = (v_theta - 1 - v_token) / (v_theta - v_token) =
    1 - 1/lag; ``token_lag`` [n] in policy updates. alpha is 0 for a lag of 1 or less.
    """
    alpha = (1 - 1 / token_lag.clamp(min=1).to(logp.dtype)).clamp(0, 1)
    return torch.where(alpha > 0, logp_rollout + alpha * (logp.detach() - logp_rollout), logp_rollout)


def value_loss(values: Tensor, targets: Tensor, *, values_before: Tensor | None = None, clip: float | None = None) -> Tensor:
    """(V - G)^2 / 2 per position; targets carry no gradient.

    With ``clip`` the larger of that and the same for V clipped to ``values_before`` +- clip, which are the values before the
    batch's first update (PPO's value clipping).
    """
    plain = 0.5 * (values - targets.detach()) ** 2
    if clip is None or values_before is None:
        return plain
    old = values_before.detach()
    bounded = old + (values - old).clamp(-clip, clip)
    return torch.maximum(plain, 0.5 * (bounded - targets.detach()) ** 2)


def _possible(logp: Tensor) -> Tensor:
    """A token that the current policy can't sample any more (log-prob -inf) has ratio 0; NaN is not hidden."""
    return logp.detach() != -torch.inf


def _score(logp: Tensor, weight: Tensor, advantages: Tensor, kept: Tensor) -> Loss:
    # Both the coefficient and the product are selected: 0 * (-inf) would be NaN, forward and backward.
    coefficient = torch.where(kept, weight * advantages, 0.0)
    return Loss(torch.where(kept, -coefficient * logp, 0.0), kept)


def _clipped(own: Tensor, advantages: Tensor, low: float, high: float, dual_clip: float | None) -> Loss:
    per_token = -torch.minimum(own * advantages, own.clamp(low, high) * advantages)
    negative = advantages < 0
    clipped = ((advantages > 0) & (own > high)) | (negative & (own < low))
    if dual_clip is not None:
        per_token = torch.where(negative, torch.minimum(per_token, -dual_clip * advantages), per_token)
        clipped |= negative & (own > dual_clip)
    return Loss(per_token, ~clipped.detach())
