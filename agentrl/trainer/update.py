"""One batch, one update: values, critic updates, credit, the policy's passes, metrics.

- **update_order**: values before -> K critic updates -> values for the advantages (before or after, by setting) -> advantages
  -> as many policy steps as the setting ``passes`` says, one by default, all with the same advantages and denominator.
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

from agentrl.algorithm.losses import value_loss
from agentrl.config.algorithm import AlgorithmConfig, CriticConfig
from agentrl.errors import RunFailed
from agentrl.store.contract import Trained
from agentrl.trainer.batch import Batch
from agentrl.trainer.credit import Credit, Values, assign_credit, cut_off
from agentrl.trainer.gradients import GradientMemory
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import LossFunction, NonFiniteStep, Outputs, Step, TrainedModel
from agentrl.trainer.objective import needs_current_logprobs, policy_loss, regularisation, sequence_columns
from agentrl.trainer.reference import Reference
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


@dataclass(frozen=True, slots=True)
class Companions:
    """What some settings need beside the models: the reference policy, and the last gradient."""

    reference: Reference | None = None
    gradients: GradientMemory | None = None


_ALONE = Companions()


def train_on(
    batch: Batch,
    policy: TrainedModel,
    critic: TrainedModel | None,
    settings: AlgorithmConfig,
    *,
    policy_lr: float,
    update_policy: bool,
    token_lags: Sequence[Tensor] | None = None,
    companions: Companions = _ALONE,
) -> UpdateResult:
    """Train both models on a batch; ``update_policy`` False trains the critic alone (warm-up).

    ``token_lags``: per trajectory int64 [n], in policy updates; without them lags are in no metric, and an interpolated
    proximal policy can't be had. All log-probs and metrics are those before the policy's first step. Raises `NonFiniteUpdate`.
    """
    if not batch.trajectories:
        return UpdateResult(policy_updated=False, metrics={}, denominators={"policy": 0.0}, trained=[])
    metrics: dict[str, float] = {}
    reference = companions.reference
    logp_reference = None if reference is None else reference.logprobs(batch)
    if logp_reference is not None:
        refuse_non_finite(batch, "log-prob of the reference policy", logp_reference)
    penalties = None if reference is None or logp_reference is None else reference.penalties(batch, logp_reference)
    values = None if critic is None else train_critic(batch, critic, settings, penalties, metrics)
    credit = assign_credit(batch, values, settings, penalties=penalties)
    refuse_non_finite(batch, "advantage", credit.advantages)
    columns = policy_columns(batch, credit, token_lags, logp_reference)
    step = PolicyStep(batch, policy, credit, settings, columns, 0.0 if reference is None else reference.coefficient)
    outputs = step.run(policy_lr if update_policy else None, metrics, companions.gradients)
    logprobs, entropy = join_rows(batch, outputs, "logprob"), join_rows(batch, outputs, "entropy")
    metrics |= policy_metrics(batch, credit, logprobs, entropy, settings, step.columns)
    if reference is not None and "kl_reference" in metrics:
        metrics["kl_coefficient"] = reference.coefficient
        if update_policy:
            reference.adapt(metrics["kl_reference"], len(batch.trajectories))
    return UpdateResult(
        policy_updated="policy_loss" in metrics,
        metrics=metrics,
        denominators=denominators(credit),
        trained=trained_arrays(batch, credit, logprobs, values),
    )


def train_critic(
    batch: Batch,
    critic: TrainedModel,
    settings: AlgorithmConfig,
    penalties: Sequence[Tensor] | None,
    metrics: dict[str, float],
) -> list[Values]:
    """K value updates; returns the values that the advantages are computed from. Adds what it measured to ``metrics``."""
    config = settings.critic
    assert config is not None
    finals = [cut_off(t) for t in batch.trajectories]
    credit, rows = value_targets(batch, critic, settings, penalties)
    assert credit.value_weights is not None
    whole, rate, steps = credit.value_weights.denominator, config.learning_rate, []
    for _ in range(config.updates_per_batch):
        with naming_trajectories(batch):
            steps.append(critic.step(rows, critic_loss(config), denominator=whole, learning_rate=rate))
    before = read_values(batch, steps[0].outputs, finals)
    plain = action_rows(batch, {}, with_final=finals)
    after = read_values(batch, critic.forward(plain), finals) if config.value_eval == "after" else None
    metrics |= {"value_loss": steps[0].loss, "value_loss_last": steps[-1].loss, "critic_grad_norm": steps[-1].grad_norm}
    metrics |= critic_metrics(batch, before, after, credit, settings, penalties)
    chosen = before if after is None else after
    refuse_non_finite(batch, "value", [v.at_actions for v in chosen])
    return chosen


def value_targets(
    batch: Batch, critic: TrainedModel, settings: AlgorithmConfig, penalties: Sequence[Tensor] | None
) -> tuple[Credit, list[Row]]:
    """The credit whose returns the critic learns, and its rows with them."""
    config = settings.critic
    assert config is not None
    finals = [cut_off(t) for t in batch.trajectories]
    if config.gae_lambda == 1 and not any(finals) and settings.mapping == "broadcast" and config.value_clip is None:
        # Targets are then plain returns, whatever the values: the first update's forward pass gives the values before.
        before = [Values(torch.zeros(t.n_actions), 0.0) for t in batch.trajectories]
    else:
        before = read_values(batch, critic.forward(action_rows(batch, {}, with_final=finals)), finals)
    credit = assign_credit(batch, before, settings, penalties=penalties)
    assert credit.returns is not None
    assert credit.value_weights is not None
    columns = {"target": credit.returns, "weight": credit.value_weights.per_token}
    if config.value_clip is not None:
        columns["before"] = [v.at_actions for v in before]
    return credit, action_rows(batch, columns, with_final=finals)


def critic_loss(config: CriticConfig) -> LossFunction:
    """The critic's loss over the columns of `value_targets`."""

    def loss(outputs: Outputs, columns: Mapping[str, Tensor]) -> Tensor:
        per_token = value_loss(outputs["value"], columns["target"], values_before=columns.get("before"), clip=config.value_clip)
        return (columns["weight"] * per_token).sum()

    return loss


def read_values(batch: Batch, outputs: Sequence[Outputs], finals: Sequence[bool]) -> list[Values]:
    """The critic's outputs per trajectory; ``finals``: of which it was asked for the state after the last token, too."""
    joined = join_rows(batch, outputs, "value")
    return [Values(v[:-1], float(v[-1])) if final else Values(v, 0.0) for v, final in zip(joined, finals, strict=True)]


def policy_columns(
    batch: Batch, credit: Credit, token_lags: Sequence[Tensor] | None, logp_reference: Sequence[Tensor] | None
) -> dict[str, Sequence[Tensor]]:
    """What the policy's loss reads, per trajectory [n]; see `agentrl.trainer.objective`."""
    columns: dict[str, Sequence[Tensor]] = {
        "weight": credit.policy_weights.per_token,
        "advantage": credit.advantages,
        "logp_rollout": [t.logp_rollout for t in batch.trajectories],
    }
    if token_lags is not None:
        columns["token_lag"] = token_lags
    if logp_reference is not None:
        columns["logp_reference"] = logp_reference
    return columns


@dataclass
class PolicyStep:
    """The policy's passes over one batch. ``columns``: of the first pass, once it has run."""

    batch: Batch
    policy: TrainedModel
    credit: Credit
    settings: AlgorithmConfig
    columns: dict[str, Sequence[Tensor]]
    kl_coefficient: float

    def run(
        self, learning_rate: float | None, metrics: dict[str, float], gradients: GradientMemory | None
    ) -> Sequence[Outputs]:
        """All passes and their metrics, or only a forward pass when there is no rate or nothing to train on; the outputs are
        those before the first step."""
        if learning_rate is None or not self.credit.policy_weights.denominator:
            self.columns |= self._sequence_columns(0, None)
            return self.policy.forward(action_rows(self.batch, {}))
        first: Step | None = None
        for number in range(self.settings.passes):
            proximal = None if first is None else join_rows(self.batch, first.outputs, "logprob")
            columns = {**self.columns, **self._sequence_columns(number, proximal)}
            if proximal is not None:
                columns["logp_proximal"] = proximal
            with naming_trajectories(self.batch):
                step = self.policy.step(
                    action_rows(self.batch, columns),
                    self._loss,
                    denominator=self.credit.policy_weights.denominator,
                    learning_rate=learning_rate,
                )
            if gradients is not None:
                metrics |= gradients.compare(self.policy)
            if first is None:
                first, self.columns = step, columns
                metrics |= {"policy_loss": step.loss, "policy_grad_norm": step.grad_norm, "policy_lr": learning_rate}
            else:
                metrics |= {"policy_loss_last": step.loss, "policy_grad_norm_last": step.grad_norm}
        assert first is not None
        return first.outputs

    def add(self) -> Sequence[Outputs]:
        """Add this batch's share to the step that the policy has begun; see `TrainedModel.add_rows`."""
        self.columns |= self._sequence_columns(0, None)
        return self.policy.add_rows(action_rows(self.batch, self.columns), self._loss)

    def _sequence_columns(self, number: int, proximal: Sequence[Tensor] | None) -> dict[str, list[Tensor]]:
        if not needs_current_logprobs(self.settings, number):
            return {}
        current = join_rows(self.batch, self.policy.forward(action_rows(self.batch, {})), "logprob")
        masks = [weights > 0 for weights in self.credit.policy_weights.per_token]
        return sequence_columns(self.batch, current, proximal, masks, self.settings)

    def _loss(self, outputs: Outputs, columns: Mapping[str, Tensor]) -> Tensor:
        logp = outputs["logprob"]
        per_token = policy_loss(logp, columns, self.settings).per_token
        if self.kl_coefficient or self.settings.entropy_bonus:
            per_token = per_token + regularisation(logp, outputs["entropy"], columns, self.settings, self.kl_coefficient)
        # Selected, not multiplied: a token out of the loss may hold anything.
        return torch.where(columns["weight"] > 0, columns["weight"] * per_token, 0.0).sum()


@contextmanager
def naming_trajectories(batch: Batch) -> Iterator[None]:
    """Turn a model's `NonFiniteStep` (rows) into `NonFiniteUpdate` (trajectories)."""
    try:
        yield
    except NonFiniteStep as error:
        numbers = owners(batch, error.rows) or range(len(batch.trajectories))
        raise _non_finite(batch, str(error.args[0]), numbers) from error


def refuse_non_finite(batch: Batch, what: str, per_trajectory: Sequence[Tensor]) -> None:
    """`NonFiniteUpdate` names the trajectories of which a tensor is not finite."""
    bad = [number for number, tensor in enumerate(per_trajectory) if not bool(tensor.isfinite().all())]
    if bad:
        raise _non_finite(batch, f"non-finite {what}; the policy was not updated", bad)


def _non_finite(batch: Batch, what: str, numbers: Iterable[int]) -> NonFiniteUpdate:
    ids = [batch.trajectories[number].id for number in numbers]
    return NonFiniteUpdate(f"{what}. Trajectories: {', '.join(map(str, ids))}. Look at one with: agentrl show {ids[0]}", ids)


def denominators(credit: Credit) -> dict[str, float]:
    """Of the policy's and the critic's loss, as the ledger keeps them."""
    found = {"policy": credit.policy_weights.denominator}
    if credit.value_weights is not None:
        found["value"] = credit.value_weights.denominator
    return found


def trained_arrays(batch: Batch, credit: Credit, logprobs: Sequence[Tensor], values: Sequence[Values] | None) -> list[Trained]:
    """What the ledger keeps of each trajectory."""
    return [
        Trained(
            trajectory=trajectory.id,
            logprobs=logprobs[i].numpy(),
            values=None if values is None else values[i].at_actions.numpy(),
            advantages=credit.advantages[i].numpy(),
            returns=None if credit.returns is None else credit.returns[i].numpy(),
            local_advantages=None if credit.local is None else credit.local[i].numpy(),
        )
        for i, trajectory in enumerate(batch.trajectories)
    ]
