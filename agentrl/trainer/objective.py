"""The policy's loss by name: from the settings to the functions of `agentrl.algorithm`.

Columns are tensors [n] over action tokens, of a micro-batch or of a whole batch alike. What depends on a whole trajectory (its
mean log-ratio, its gate) is a column too, computed before the step: so no loss depends on how rows are split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.algorithm.kl import MAX_K3, kl_per_token
from agentrl.algorithm.losses import (
    Loss,
    cispo_loss,
    decoupled_ppo_loss,
    dis_loss,
    gspo_loss,
    interpolated_proximal,
    ppo_clip_loss,
    reinforce_loss,
)
from agentrl.algorithm.ratios import bernoulli_kl, capped_weight, inside, masked_weight, per_sequence
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch

Columns = Mapping[str, Tensor]
"""``advantage``, ``logp_rollout`` and, where the settings need them, ``logp_proximal``, ``token_lag``, ``sequence_log_ratio``,
``gate``, ``logp_reference``. Without ``logp_proximal`` the weights have not moved since the batch arrived."""


def policy_loss(logp: Tensor, columns: Columns, settings: AlgorithmConfig) -> Loss:
    """The loss of the settings, without KL and entropy; trajectories whose gate is closed have none."""
    loss = _named_loss(logp, columns, settings)
    gate = columns.get("gate")
    if gate is None:
        return loss
    return Loss(torch.where(gate > 0, loss.per_token, 0.0), loss.kept & (gate > 0))


def _named_loss(logp: Tensor, columns: Columns, settings: AlgorithmConfig) -> Loss:
    advantages, rollout = columns["advantage"], columns["logp_rollout"]
    low, high, dual = settings.ratio_low, settings.ratio_high, settings.dual_clip
    if settings.loss == "dis":
        return dis_loss(logp, logp_rollout=rollout, advantages=advantages, low=low, high=high)
    if settings.loss == "reinforce":
        return reinforce_loss(logp, logp_rollout=rollout, advantages=advantages, cap=settings.weight_cap)
    if settings.loss == "gspo":
        own = columns.get("sequence_log_ratio", torch.zeros_like(advantages))
        return gspo_loss(logp, sequence_log_ratio=own, advantages=advantages, low=low, high=high, dual_clip=dual)
    proximal = columns.get("logp_proximal", logp.detach())
    if settings.loss == "decoupled_ppo":
        if settings.proximal == "interpolated":
            proximal = interpolated_proximal(logp, logp_rollout=rollout, token_lag=columns["token_lag"])
        weight = _correction(proximal - rollout, settings)
        return decoupled_ppo_loss(
            logp, logp_proximal=proximal, weight=weight, advantages=advantages, low=low, high=high, dual_clip=dual
        )
    behaviour = rollout if settings.ratio_to == "rollout" else proximal
    if settings.loss == "cispo":
        return cispo_loss(logp, logp_behaviour=behaviour, advantages=advantages, low=low, high=high)
    return ppo_clip_loss(logp, logp_behaviour=behaviour, advantages=advantages, low=low, high=high, dual_clip=dual)


def regularisation(logp: Tensor, entropy: Tensor, columns: Columns, settings: AlgorithmConfig, kl_coefficient: float) -> Tensor:
    """What is added to each token's loss: KL to the reference (if it is in the loss) and the entropy bonus."""
    added = torch.zeros_like(logp)
    if kl_coefficient and settings.kl.place == "loss":
        added = added + kl_coefficient * kl_per_token(logp, columns["logp_reference"], settings.kl.estimator, cap=MAX_K3)
    if settings.entropy_bonus:
        added = added - settings.entropy_bonus * entropy
    return added


def needs_current_logprobs(settings: AlgorithmConfig, pass_number: int) -> bool:
    """Whether a step needs the log-probs of whole trajectories under the current weights before it starts."""
    gspo = settings.loss == "gspo" and (settings.ratio_to == "rollout" or pass_number > 0)
    return gspo or settings.sequence_gate != "none"


def sequence_columns(
    batch: Batch,
    current: Sequence[Tensor],
    proximal: Sequence[Tensor] | None,
    masks: Sequence[Tensor],
    settings: AlgorithmConfig,
) -> dict[str, list[Tensor]]:
    """Columns that need whole trajectories; per trajectory [n]. ``current``: log-probs [n] under the weights of this step."""
    columns: dict[str, list[Tensor]] = {}
    rollout = [t.logp_rollout for t in batch.trajectories]
    if settings.loss == "gspo":
        old = rollout if settings.ratio_to == "rollout" or proximal is None else proximal
        ratios = per_sequence([new - o for new, o in zip(current, old, strict=True)], masks, mean=True)
        columns["sequence_log_ratio"] = _repeated(ratios, rollout)
    if settings.sequence_gate != "none":
        columns["gate"] = _repeated(_gates(current, rollout, masks, settings).float(), rollout)
    return columns


def _gates(current: Sequence[Tensor], rollout: Sequence[Tensor], masks: Sequence[Tensor], settings: AlgorithmConfig) -> Tensor:
    """Per trajectory, whether it takes part; bool [m]."""
    if settings.sequence_gate == "bernoulli_kl":
        kls = [bernoulli_kl(old, new) for old, new in zip(rollout, current, strict=True)]
        return per_sequence(kls, masks, mean=True) <= settings.gate_high
    logs = [new - old for new, old in zip(current, rollout, strict=True)]
    whole = per_sequence(logs, masks, mean=settings.sequence_gate == "geometric")
    return inside(whole, low=settings.gate_low, high=settings.gate_high)


def _correction(log_ratio: Tensor, settings: AlgorithmConfig) -> Tensor:
    if settings.correction == "mask":
        return masked_weight(log_ratio, low=settings.correction_low, high=settings.correction_high)
    return capped_weight(log_ratio, cap=settings.correction_high if settings.correction == "cap" else None)


def _repeated(per_trajectory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.full_like(x, float(own)) for own, x in zip(per_trajectory, like, strict=True)]
