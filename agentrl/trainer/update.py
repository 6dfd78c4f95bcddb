"""One batch, one update: values, critic updates, credit, one policy step, metrics.

- **update_order**: values before -> K critic updates -> values for the advantages (before or after, by setting) -> advantages
  -> one policy step on data used once.
- **non_finite_stops**: a NaN or infinite value, advantage, loss or gradient raises `NonFiniteUpdate` with the trajectories' ids
  before the policy is touched; the run must not continue, commit or publish after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import torch
from torch import Tensor

from agentrl.algorithm.losses import dis_loss, ppo_clip_loss, value_loss
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import RunFailed
from agentrl.store.contract import Trained
from agentrl.trainer.batch import Batch
from agentrl.trainer.credit import Credit, Values, assign_credit, bootstraps
from agentrl.trainer.megatron.model import NonFiniteStep, Outputs, TrainedModel
from agentrl.trainer.rows import action_rows, join_rows, owners
from agentrl.trainer.statistics import critic_metrics, policy_metrics


class NonFiniteUpdate(RunFailed):
    """Something of an update was NaN or infinite. ``args[1]``: ids of the trajectories it came from."""

    @property
    def trajectories(self) -> tuple[UUID, ...]:
        return tuple(self.args[1])


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """``policy_updated`` is False for a critic-only batch and for one with nothing to train on."""

    policy_updated: bool
    metrics: Mapping[str, float]
    denominators: Mapping[str, float]
    trained: Sequence[Trained]


def train_on(
    batch: Batch,
    policy: TrainedModel,
    critic: TrainedModel | None,
    settings: AlgorithmConfig,
    *,
    policy_lr: float,
    update_policy: bool,
) -> UpdateResult:
    """Train both models on a batch; ``update_policy`` False trains the critic alone (warm-up).

    All log-probs and metrics are those before the policy step. Raises `NonFiniteUpdate`.
    """
    if not batch.trajectories:
        return UpdateResult(policy_updated=False, metrics={}, denominators={"policy": 0.0}, trained=[])
    metrics: dict[str, float] = {}
    values = None if critic is None else _train_critic(batch, critic, settings, metrics)
    credit = assign_credit(batch, values, settings)
    _refuse_non_finite(batch, "advantage", credit.advantages)
    outputs = _step_policy(batch, policy, credit, settings, policy_lr if update_policy else None, metrics)
    logprobs, entropy = join_rows(batch, outputs, "logprob"), join_rows(batch, outputs, "entropy")
    metrics |= policy_metrics(batch, credit, logprobs, entropy, settings)
    return UpdateResult(
        policy_updated="policy_loss" in metrics,
        metrics=metrics,
        denominators=_denominators(credit),
        trained=_trained(batch, credit, logprobs, values),
    )


def _train_critic(batch: Batch, critic: TrainedModel, settings: AlgorithmConfig, metrics: dict[str, float]) -> list[Values]:
    """K value updates; returns the values that the advantages are computed from."""
    config = settings.critic
    assert config is not None
    finals = [bootstraps(t, settings) for t in batch.trajectories]
    plain = action_rows(batch, {}, with_final=finals)
    if config.gae_lambda == 1 and not any(finals):
        # Targets are then plain returns, whatever the values: the first update's forward pass gives the values before.
        before = [Values(torch.zeros(t.n_actions), 0.0) for t in batch.trajectories]
    else:
        before = _values(batch, critic.forward(plain), finals)
    credit = assign_credit(batch, before, settings)
    assert credit.returns is not None
    assert credit.value_weights is not None
    rows = action_rows(batch, {"target": credit.returns, "weight": credit.value_weights.per_token}, with_final=finals)
    steps = []
    for _ in range(config.updates_per_batch):
        with _naming(batch):
            steps.append(
                critic.step(
                    rows, _critic_loss, denominator=credit.value_weights.denominator, learning_rate=config.learning_rate
                )
            )
    before = _values(batch, steps[0].outputs, finals)
    after = _values(batch, critic.forward(plain), finals) if config.value_eval == "after" else None
    metrics |= {"value_loss": steps[0].loss, "value_loss_last": steps[-1].loss, "critic_grad_norm": steps[-1].grad_norm}
    metrics |= critic_metrics(batch, before, after, credit, settings)
    chosen = before if after is None else after
    _refuse_non_finite(batch, "value", [v.at_actions for v in chosen])
    return chosen


def _critic_loss(outputs: Outputs, columns: Mapping[str, Tensor]) -> Tensor:
    return (columns["weight"] * value_loss(outputs["value"], columns["target"])).sum()


def _values(batch: Batch, outputs: Sequence[Outputs], finals: Sequence[bool]) -> list[Values]:
    joined = join_rows(batch, outputs, "value")
    return [Values(v[:-1], float(v[-1])) if final else Values(v, 0.0) for v, final in zip(joined, finals, strict=True)]


def _step_policy(
    batch: Batch,
    policy: TrainedModel,
    credit: Credit,
    settings: AlgorithmConfig,
    learning_rate: float | None,
    metrics: dict[str, float],
) -> Sequence[Outputs]:
    """One policy step and its metrics, or only a forward pass when there is no rate or nothing to train on."""
    if learning_rate is None or not credit.policy_weights.denominator:
        return policy.forward(action_rows(batch, {}))
    columns = {
        "weight": credit.policy_weights.per_token,
        "advantage": credit.advantages,
        "logp_rollout": [t.logp_rollout for t in batch.trajectories],
    }

    def loss(outputs: Outputs, columns: Mapping[str, Tensor]) -> Tensor:
        low, high = settings.ratio_low, settings.ratio_high
        logp, rollout, advantages = outputs["logprob"], columns["logp_rollout"], columns["advantage"]
        if settings.loss == "dis":
            per_token = dis_loss(logp, logp_rollout=rollout, advantages=advantages, low=low, high=high).per_token
        else:
            per_token = ppo_clip_loss(logp, logp_behaviour=rollout, advantages=advantages, low=low, high=high).per_token
        # Selected, not multiplied: a token out of the loss may hold anything.
        return torch.where(columns["weight"] > 0, columns["weight"] * per_token, 0.0).sum()

    denominator = credit.policy_weights.denominator
    with _naming(batch):
        step = policy.step(action_rows(batch, columns), loss, denominator=denominator, learning_rate=learning_rate)
    metrics |= {"policy_loss": step.loss, "policy_grad_norm": step.grad_norm, "policy_lr": learning_rate}
    return step.outputs


@contextmanager
def _naming(batch: Batch) -> Iterator[None]:
    """Turn a model's `NonFiniteStep` (rows) into `NonFiniteUpdate` (trajectories)."""
    try:
        yield
    except NonFiniteStep as error:
        numbers = owners(batch, error.rows) or range(len(batch.trajectories))
        raise _non_finite(batch, str(error.args[0]), numbers) from error


def _refuse_non_finite(batch: Batch, what: str, per_trajectory: Sequence[Tensor]) -> None:
    bad = [number for number, tensor in enumerate(per_trajectory) if not bool(tensor.isfinite().all())]
    if bad:
        raise _non_finite(batch, f"non-finite {what}; the policy was not updated", bad)


def _non_finite(batch: Batch, what: str, numbers: Iterable[int]) -> NonFiniteUpdate:
    ids = [batch.trajectories[number].id for number in numbers]
    return NonFiniteUpdate(f"{what}. Trajectories: {', '.join(map(str, ids))}. Look at one with: agentrl show {ids[0]}", ids)


def _denominators(credit: Credit) -> dict[str, float]:
    found = {"policy": credit.policy_weights.denominator}
    if credit.value_weights is not None:
        found["value"] = credit.value_weights.denominator
    return found


def _trained(batch: Batch, credit: Credit, logprobs: Sequence[Tensor], values: Sequence[Values] | None) -> list[Trained]:
    return [
        Trained(
            trajectory=trajectory.id,
            logprobs=logprobs[i].numpy(),
            values=None if values is None else values[i].at_actions.numpy(),
            advantages=credit.advantages[i].numpy(),
            returns=None if credit.returns is None else credit.returns[i].numpy(),
        )
        for i, trajectory in enumerate(batch.trajectories)
    ]
