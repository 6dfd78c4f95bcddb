"""Numbers about one update, over the whole batch: how far the policy moved from the sampler, and how good the critic was.

A metric without a value (an undefined mean or variance) is absent, never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.algorithm.kl import kl_per_token
from agentrl.algorithm.metrics import (
    effective_sample_size,
    explained_variance,
    kept_by_lag,
    kl_old_new,
    masked_mean,
    masked_shares,
    off_policy,
)
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch
from agentrl.trainer.credit import Credit, Values, assign_credit
from agentrl.trainer.objective import policy_loss


def policy_metrics(
    batch: Batch,
    credit: Credit,
    logprobs: Sequence[Tensor],
    entropy: Sequence[Tensor],
    settings: AlgorithmConfig,
    columns: Mapping[str, Sequence[Tensor]],
) -> dict[str, float]:
    """Divergence from the sampler, masked shares, sample sizes, advantages; over the tokens that count in the loss.

    ``logprobs`` and ``entropy``: per trajectory [n], of the policy before the update. ``columns``: what the loss read, see
    `agentrl.trainer.objective`. KL is KL(rollout || policy).
    """
    whole = {name: torch.cat([x.float() for x in own]) for name, own in columns.items()}
    logp, old, advantages = torch.cat(list(logprobs)), whole["logp_rollout"], whole["advantage"]
    mask = whole["weight"] > 0
    kept = policy_loss(logp, whole, settings).kept
    chosen = advantages[mask].double()
    metrics: dict[str, float | None] = {
        "entropy": masked_mean(torch.cat(list(entropy)), mask).value,
        "kept_fraction": masked_mean(kept.float(), mask).value,
        "advantage_mean": float(chosen.mean()) if len(chosen) else None,
        "advantage_std": float(chosen.std(correction=0)) if len(chosen) else None,
        "action_tokens": float(batch.n_actions),
        "turns_mean": _mean([t.n_turns for t in batch.trajectories]),
        "truncated_share": _mean([t.termination.is_truncated() for t in batch.trajectories]),
    }
    metrics |= _divergence(logp, old, mask) | _masked(logp - old, advantages, mask, kept)
    parts = [part[own > 0].double() for part, own in zip((logp - old).split(_lengths(batch)), columns["weight"], strict=True)]
    logs = [part.sum() for part in parts if len(part)]
    metrics["ess_sequence"] = effective_sample_size(torch.stack(logs)) if logs else None
    if "gate" in whole:
        metrics["gated_fraction"] = masked_mean((whole["gate"] == 0).float(), mask).value
    if "logp_reference" in whole:
        distance = kl_per_token(logp, whole["logp_reference"], settings.kl.estimator)
        metrics["kl_reference"] = masked_mean(distance, mask).value
    if "token_lag" in whole:
        metrics |= _by_lag(logp - old, whole["token_lag"], mask, kept)
    return _present(metrics)


def _divergence(logp: Tensor, old: Tensor, mask: Tensor) -> dict[str, float | None]:
    kl, moments = kl_old_new(old, logp, mask), off_policy(logp - old, mask)
    return {
        "kl_k1": kl.k1.value,
        "kl_k2": kl.k2.value,
        "kl_k3": kl.k3.value,
        "logp_gap_mean": masked_mean((logp - old).abs(), mask).value,
        "logp_gap_max": float((logp - old)[mask].abs().max()) if bool(mask.any()) else None,
        "ess_token": effective_sample_size((logp - old)[mask]),
        "chi2": moments.chi2,
        "log_ratio_m2": moments.m2,
        "ppl_ratio": moments.ppl_ratio,
    }


def _masked(log_ratio: Tensor, advantages: Tensor, mask: Tensor, kept: Tensor) -> dict[str, float | None]:
    shares = masked_shares(log_ratio, advantages, mask, kept)
    return {f"masked_{side}": share.value for side, share in shares._asdict().items()}


def _by_lag(log_ratio: Tensor, token_lag: Tensor, mask: Tensor, kept: Tensor) -> dict[str, float | None]:
    fresh = mask & (token_lag == 0)
    rates = {f"kept_lag_{bucket}": rate.value for bucket, rate in kept_by_lag(kept, token_lag, mask).items()}
    return {
        **rates,
        "token_lag_mean": masked_mean(token_lag, mask).value,
        "token_lag_max": float(token_lag[mask].max()) if bool(mask.any()) else None,
        # Tokens of the trainer's own weights: what is left is the engine's inexactness.
        "engine_gap_mean": masked_mean(log_ratio.abs(), fresh).value,
    }


def critic_metrics(
    batch: Batch,
    before: Sequence[Values],
    after: Sequence[Values] | None,
    credit: Credit,
    settings: AlgorithmConfig,
    penalties: Sequence[Tensor] | None,
) -> dict[str, float]:
    """Fit of the critic before its updates; ``adv_shrink``: std of advantages after / before them (small: it memorises).

    ``value_out_of_range``: share of values outside the rewards of the batch. ``local_advantage_std``: spread of what single
    turns changed in the critic's eyes.
    """
    assert credit.returns is not None
    assert credit.value_weights is not None
    mask = torch.cat(credit.value_weights.per_token) > 0
    values = torch.cat([v.at_actions for v in before])
    first = assign_credit(batch, before, settings, penalties=penalties)
    metrics = {
        "explained_variance": explained_variance(torch.cat(credit.returns), values, mask),
        "value_mean": masked_mean(values, mask).value,
        "return_mean": masked_mean(torch.cat(credit.returns), mask).value,
    }
    outcomes = [t.reward for t in batch.trajectories if t.reward is not None]
    if outcomes:
        outside = (values < min(outcomes)) | (values > max(outcomes))
        metrics["value_out_of_range"] = masked_mean(outside.float(), mask).value
    if first.local is not None:
        metrics["local_advantage_std"] = float(torch.cat(first.local).double().std(correction=0))
    if after is not None:
        second = torch.cat(assign_credit(batch, after, settings, penalties=penalties).advantages).double()
        spread = float(torch.cat(first.advantages).double().std(correction=0))
        metrics["adv_shrink"] = float(second.std(correction=0)) / spread if spread else None
    return _present(metrics)


def _lengths(batch: Batch) -> list[int]:
    return [t.n_actions for t in batch.trajectories]


def _mean(numbers: Sequence[float]) -> float | None:
    return float(sum(numbers)) / len(numbers) if numbers else None


def _present(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
