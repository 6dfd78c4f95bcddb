"""Who earned the reward: from a batch and the critic's values to advantages, value targets and denominators.

A trajectory whose final state was graded ended there, whatever budget ran out: the value after it is 0 and the verdict counts.
Only one that was not graded follows the setting ``truncation``: bootstrap from the critic, count as ended without a verdict, or
be left out of the loss and of every baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentrl.algorithm.advantages import length_adaptive_lambda, skip_observation_gae
from agentrl.algorithm.denominators import Weights, aggregation_weights
from agentrl.algorithm.normalise import whiten
from agentrl.algorithm.turns import (
    broadcast_turns,
    hierarchical_advantages,
    local_advantages,
    sum_by_turn,
    turn_ends,
    turn_starts,
    unit_values,
)
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.baselines import critic_free_advantages
from agentrl.trainer.batch import Batch, BatchTrajectory
from agentrl.trainer.rewards import turn_rewards, with_outcome
from agentrl.types import Outcome


@dataclass(frozen=True, slots=True)
class Values:
    """The critic's reading of one trajectory: ``at_actions`` float32 [n], V of the state before each action token; ``final``: V
    after everything, read only where the episode was cut off (`cut_off`)."""

    at_actions: Tensor
    final: float


@dataclass(frozen=True, slots=True)
class Credit:
    """Per trajectory, tensors [n] over action tokens, in the order of the batch.

    ``returns`` are value targets (a turn's target on each of its tokens), trained where ``value_weights`` is not 0. ``local``:
    per unit of credit float32 [K], V(after the observation that followed) - V(before); V is 0 after an episode that ended, and
    the critic's after one that was cut off, whatever its credit does. None without a critic. Weights and denominators:
    see `agentrl.algorithm.denominators`, over the whole batch.
    """

    advantages: list[Tensor]
    policy_weights: Weights
    returns: list[Tensor] | None
    value_weights: Weights | None
    local: list[Tensor] | None


def cut_off(trajectory: BatchTrajectory) -> bool:
    """Whether there is a state after the last action from which the episode was to go on."""
    return trajectory.outcome is Outcome.POLICY_ENDED


def bootstraps(trajectory: BatchTrajectory, settings: AlgorithmConfig) -> bool:
    """Whether the value after the last token stands for the future that was cut off."""
    return cut_off(trajectory) and settings.truncation == "bootstrap"


def left_out(trajectory: BatchTrajectory, settings: AlgorithmConfig) -> bool:
    """Whether the trajectory takes part in no loss and no baseline."""
    return cut_off(trajectory) and settings.truncation == "mask"


def assign_credit(
    batch: Batch,
    values: Sequence[Values] | None,
    settings: AlgorithmConfig,
    *,
    penalties: Sequence[Tensor] | None = None,
) -> Credit:
    """Advantages, targets and denominators of a batch.

    ``values``: one per trajectory; None exactly when there is no critic. ``penalties``: per trajectory [n], taken from the
    reward of each action token (a KL in the reward).
    """
    if (values is None) != (settings.critic is None):
        raise ValueError("values are needed exactly when the algorithm has a critic")
    trajectories = batch.trajectories
    kept = [not left_out(t, settings) for t in trajectories]
    masks = [t.loss_mask & keep for t, keep in zip(trajectories, kept, strict=True)]
    policy_weights = aggregation_weights(
        masks, settings.aggregation, unit_ids=[t.unit_id for t in trajectories], length_norm=settings.length_norm
    )
    rewards = [turn_rewards(t, None if penalties is None else penalties[i]) for i, t in enumerate(trajectories)]
    if values is None:
        advantages = critic_free_advantages(batch, rewards, masks, kept, settings)
        return Credit(_by_token(advantages, masks, settings), policy_weights, None, None, None)
    rewards = [with_outcome(r, t, settings) for r, t in zip(rewards, trajectories, strict=True)]
    read = [
        Values(v.at_actions, v.final if bootstraps(t, settings) else 0.0) for t, v in zip(trajectories, values, strict=True)
    ]
    estimate = _turn_credit if settings.advantage == "turn_gae" else _token_credit
    advantages, returns, value_masks = estimate(trajectories, rewards, read, masks, settings)
    value_masks = [mask & keep for mask, keep in zip(value_masks, kept, strict=True)]
    local = [
        local_advantages(unit_values(v.at_actions, t.unit_id), v.final if cut_off(t) else 0.0)
        for t, v in zip(trajectories, values, strict=True)
    ]
    value_weights = aggregation_weights(value_masks, "token_mean")
    return Credit(_by_token(advantages, masks, settings), policy_weights, returns, value_weights, local)


def _by_token(advantages: list[Tensor], masks: Sequence[Tensor], settings: AlgorithmConfig) -> list[Tensor]:
    return whiten(advantages, masks) if settings.normalise == "token" else advantages


_Estimated = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Advantages, value targets and value masks, per trajectory [n]."""


def _token_credit(
    trajectories: Sequence[BatchTrajectory],
    rewards: Sequence[Tensor],
    read: Sequence[Values],
    masks: Sequence[Tensor],
    settings: AlgorithmConfig,
) -> _Estimated:
    values = [v.at_actions.double() for v in read]
    advantages, critics = _estimate(rewards, values, read, [t.seams for t in trajectories], settings)
    targets = [(v + a).float() for v, a in zip(values, critics, strict=True)]
    return [a.float() for a in advantages], targets, [torch.ones_like(mask) for mask in masks]


def _turn_credit(
    trajectories: Sequence[BatchTrajectory],
    rewards: Sequence[Tensor],
    read: Sequence[Values],
    masks: Sequence[Tensor],
    settings: AlgorithmConfig,
) -> _Estimated:
    ids = [t.unit_id for t in trajectories]
    values = [unit_values(v.at_actions.double(), i, settings.turn_value) for v, i in zip(read, ids, strict=True)]
    seams = [t.seams[turn_ends(t.unit_id)] for t in trajectories]
    summed = [sum_by_turn(r, i) for r, i in zip(rewards, ids, strict=True)]
    advantages, critics = _estimate(summed, values, read, seams, settings)
    if settings.normalise == "turn":
        advantages = whiten(advantages, [sum_by_turn(m.float(), i) > 0 for m, i in zip(masks, ids, strict=True)])
    if settings.mapping == "hierarchical":
        return _inside_turns(advantages, critics, values, read, ids, settings)
    targets = [(v + a).float() for v, a in zip(values, critics, strict=True)]
    return (
        [broadcast_turns(a.float(), i) for a, i in zip(advantages, ids, strict=True)],
        [broadcast_turns(g, i) for g, i in zip(targets, ids, strict=True)],
        [_supervised(i, settings) for i in ids],
    )


def _inside_turns(
    advantages: Sequence[Tensor],
    critics: Sequence[Tensor],
    values: Sequence[Tensor],
    read: Sequence[Values],
    ids: Sequence[Tensor],
    settings: AlgorithmConfig,
) -> _Estimated:
    """Token-level estimates inside each turn; every action token's value is trained."""
    assert settings.critic is not None
    spread, targets = [], []
    for own, critic, value, v, unit_id in zip(advantages, critics, values, read, ids, strict=True):
        tokens = v.at_actions.double()
        spread.append(hierarchical_advantages(own, value, tokens, unit_id, lam=settings.token_lambda).float())
        target = tokens + hierarchical_advantages(critic, value, tokens, unit_id, lam=settings.critic.gae_lambda)
        targets.append(target.float())
    return spread, targets, [torch.ones_like(i, dtype=torch.bool) for i in ids]


def _supervised(unit_id: Tensor, settings: AlgorithmConfig) -> Tensor:
    """Where a turn's value is read is where it is trained."""
    mask = torch.full_like(unit_id, settings.turn_value == "mean", dtype=torch.bool)
    if settings.turn_value != "mean":
        mask[turn_starts(unit_id) if settings.turn_value == "first" else turn_ends(unit_id)] = True
    return mask


def _estimate(
    rewards: Sequence[Tensor],
    values: Sequence[Tensor],
    read: Sequence[Values],
    seams: Sequence[Tensor],
    settings: AlgorithmConfig,
) -> tuple[list[Tensor], list[Tensor]]:
    """Advantages with the policy's lambda and with the critic's (decoupled GAE: VC-PPO, SAO); float64, per trajectory."""
    assert settings.critic is not None
    lengths = [len(v) for v in values]
    lambdas = [_policy_lambda(n, settings) for n in lengths]
    padded_rewards, padded_values, padded_seams = (pad_sequence(list(x), batch_first=True) for x in (rewards, values, seams))
    actions = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    finals = torch.tensor([v.final for v in read], dtype=torch.float64)

    def estimate(lam: float | Tensor, *, window: int | None, clamp: float | None) -> list[Tensor]:
        rows = skip_observation_gae(
            padded_rewards,
            padded_values,
            actions,
            final_values=finals,
            gamma=settings.gamma,
            lam=lam,
            seams=padded_seams,
            window=window,
            clamp=clamp,
        )
        return [row[:n] for row, n in zip(rows, lengths, strict=True)]

    policy = estimate(torch.tensor(lambdas, dtype=torch.float64), window=settings.td_window, clamp=settings.td_clamp)
    return policy, estimate(settings.critic.gae_lambda, window=None, clamp=None)


def _policy_lambda(length: int, settings: AlgorithmConfig) -> float:
    if settings.gae_lambda == "length_adaptive":
        return length_adaptive_lambda(length, settings.lambda_alpha)
    return settings.gae_lambda
