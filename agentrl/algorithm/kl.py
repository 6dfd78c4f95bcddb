"""Distance to a reference policy: estimators per token, and the controllers of its coefficient."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from agentrl.algorithm.ratios import MAX_LOG_RATIO

Estimator = Literal["k1", "k2", "k3"]

BAND = (0.001, 0.05)
"""Below: the constraint is too strong; above: too weak."""
BAND_FACTOR = 1.5
COEFFICIENT_RANGE = (1e-4, 1.0)
ZIEGLER_CLIP = 0.2
MAX_K3 = 10.0


def kl_per_token(logp: Tensor, logp_reference: Tensor, estimator: Estimator, *, cap: float | None = None) -> Tensor:
    """Estimators of KL(policy || reference) at tokens sampled from the policy (Schulman 2020); [n], with gradient in ``logp``.

    k1 = logp - ref is unbiased; k2 = (logp - ref)^2 / 2 has the gradient of k1 in the reward; k3 = exp(ref - logp) - 1 -
    (ref - logp) is unbiased and never negative. k1 as a loss has no gradient in expectation. ``cap`` bounds each token above.
    In k2 and k3 ref - logp counts as 20 at most, so that a token which the policy has all but given up stays finite.
    """
    difference = logp_reference - logp
    bounded = difference.clamp(max=MAX_LOG_RATIO)
    if estimator == "k1":
        per_token = -difference
    elif estimator == "k2":
        per_token = 0.5 * bounded**2
    else:
        per_token = torch.expm1(bounded) - bounded
    return per_token if cap is None else per_token.clamp(max=cap)


def ziegler_coefficient(coefficient: float, *, kl: float, target: float, n: int, horizon: int) -> float:
    """coefficient * (1 + clip(kl/target - 1, +-0.2) * n/horizon) (Ziegler et al. 2019); ``n``: trajectories of the step.

    A step counts for one horizon at most: the coefficient of a short one would otherwise turn negative.
    """
    error = min(max(kl / target - 1, -ZIEGLER_CLIP), ZIEGLER_CLIP)
    return coefficient * (1 + error * min(n / horizon, 1.0))


def band_coefficient(coefficient: float, *, kl: float, low: float = BAND[0], high: float = BAND[1]) -> float:
    """Divided by 1.5 while kl < low, multiplied by 1.5 while kl > high, kept in [1e-4, 1]; unchanged inside the band."""
    if kl < low:
        coefficient /= BAND_FACTOR
    elif kl > high:
        coefficient *= BAND_FACTOR
    else:
        return coefficient
    return min(max(coefficient, COEFFICIENT_RANGE[0]), COEFFICIENT_RANGE[1])
