"""Numbers about one update, over the whole batch: how far the policy moved from the sampler, and how good the critic was.

A metric without a value (an undefined mean or variance) is absent, never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.algorithm.losses import dis_loss, ppo_clip_loss
from agentrl.algorithm.metrics import (
    effective_sample_size,
    explained_variance,
    kl_old_new,
    masked_mean,
    masked_shares,
)
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch
from agentrl.trainer.credit import Credit, Values, assign_credit


def policy_metrics(
    batch: Batch, credit: Credit, logprobs: Sequence[Tensor], entropy: Sequence[Tensor], settings: AlgorithmConfig
) -> dict[str, float]:
    """Divergence from the sampler, masked shares, sample sizes, advantages; over the tokens that count in the loss.

    ``logprobs`` and ``entropy``: per trajectory [n], of the policy before the update. KL is KL(rollout || policy).
    """
    logp, old = torch.cat(list(logprobs)), torch.cat([t.logp_rollout for t in batch.trajectories])
    mask = torch.cat(credit.policy_weights.per_token) > 0
    advantages = torch.cat(credit.advantages)
    kept = _kept(logp, old, advantages, settings)
    kl = kl_old_new(old, logp, mask)
    shares = masked_shares(logp - old, advantages, mask, kept)
    sequences = [
        (new - t.logp_rollout)[t.loss_mask].double().sum() for new, t in zip(logprobs, batch.trajectories, strict=True)
    ]
    chosen = advantages[mask].double()
    return _present(
        {
            "kl_k1": kl.k1.value,
            "kl_k2": kl.k2.value,
            "kl_k3": kl.k3.value,
            "logp_gap_mean": masked_mean((logp - old).abs(), mask).value,
            "logp_gap_max": float((logp - old)[mask].abs().max()) if len(chosen) else None,
            "entropy": masked_mean(torch.cat(list(entropy)), mask).value,
            "kept_fraction": masked_mean(kept.float(), mask).value,
            "masked_high": shares.high.value,
            "masked_low": shares.low.value,
            "masked_high_positive": shares.high_positive.value,
            "masked_high_negative": shares.high_negative.value,
            "masked_low_positive": shares.low_positive.value,
            "masked_low_negative": shares.low_negative.value,
            "ess_token": effective_sample_size((logp - old)[mask]),
            "ess_sequence": effective_sample_size(torch.stack(sequences)) if sequences else None,
            "advantage_mean": float(chosen.mean()) if len(chosen) else None,
            "advantage_std": float(chosen.std(correction=0)) if len(chosen) else None,
            "action_tokens": float(batch.n_actions),
            "turns_mean": _mean([t.n_turns for t in batch.trajectories]),
            "truncated_share": _mean([t.termination.is_truncated() for t in batch.trajectories]),
        }
    )


def critic_metrics(
    batch: Batch, before: Sequence[Values], after: Sequence[Values] | None, credit: Credit, settings: AlgorithmConfig
) -> dict[str, float]:
    """Fit of the critic before its updates; ``adv_shrink``: std of advantages after / before them (small: it memorises)."""
    assert credit.returns is not None
    assert credit.value_weights is not None
    mask = torch.cat(credit.value_weights.per_token) > 0
    values = torch.cat([v.at_actions for v in before])
    metrics = {
        "explained_variance": explained_variance(torch.cat(credit.returns), values, mask),
        "value_mean": masked_mean(values, mask).value,
        "return_mean": masked_mean(torch.cat(credit.returns), mask).value,
    }
    if after is not None:
        first, second = (torch.cat(assign_credit(batch, v, settings).advantages).double() for v in (before, after))
        spread = float(first.std(correction=0))
        metrics["adv_shrink"] = float(second.std(correction=0)) / spread if spread else None
    return _present(metrics)


def _kept(logp: Tensor, old: Tensor, advantages: Tensor, settings: AlgorithmConfig) -> Tensor:
    low, high = settings.ratio_low, settings.ratio_high
    if settings.loss == "dis":
        return dis_loss(logp, logp_rollout=old, advantages=advantages, low=low, high=high).kept
    return ppo_clip_loss(logp, logp_behaviour=old, advantages=advantages, low=low, high=high).kept


def _mean(numbers: Sequence[float]) -> float | None:
    return float(sum(numbers)) / len(numbers) if numbers else None


def _present(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
