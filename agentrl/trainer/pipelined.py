"""One update whose batch arrives in parts: each part is trained on when it comes, the optimizer steps when all are there.

Invariants
- same_gradients: gradients are sums over tokens; what all tokens are divided by is known at the end and divides the sum. So the
  update is the one of the whole batch (`agentrl.trainer.update.train_on`), up to rounding. Settings that need the whole batch
  before its first gradient are refused by `agentrl.config.schedule`.
- one_step: weights, optimizer and the KL coefficient don't move before `PipelinedUpdate.finish`; an update that is never
  finished leaves no trace.
- non_finite_stops: as in `train_on`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from agentrl.algorithm.denominators import Weights
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch
from agentrl.trainer.credit import Credit, Values, assign_credit, cut_off
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import Outputs, TrainedModel
from agentrl.trainer.rows import join_rows
from agentrl.trainer.statistics import critic_metrics, policy_metrics
from agentrl.trainer.update import (
    Companions,
    PolicyStep,
    UpdateResult,
    critic_loss,
    denominators,
    naming_trajectories,
    policy_columns,
    read_values,
    refuse_non_finite,
    trained_arrays,
    value_targets,
)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one part left behind; ``targets`` and ``rows`` are the critic's, ``outputs`` the policy's."""

    batch: Batch
    penalties: Sequence[Tensor] | None
    targets: Credit | None
    rows: Sequence[Row]
    values: Sequence[Values] | None
    credit: Credit
    columns: Mapping[str, Sequence[Tensor]]
    outputs: Sequence[Outputs]


class PipelinedUpdate:
    """Call `add` for each part, then `finish` once. ``update_policy`` False trains the critic alone."""

    def __init__(
        self,
        policy: TrainedModel,
        critic: TrainedModel | None,
        settings: AlgorithmConfig,
        *,
        update_policy: bool,
        companions: Companions,
    ) -> None:
        self._policy, self._critic, self._settings = policy, critic, settings
        self._update_policy, self._companions = update_policy, companions
        self._parts: list[_Part] = []
        policy.begin_step()
        if critic is not None:
            critic.begin_step()

    def add(self, batch: Batch, token_lags: Sequence[Tensor] | None = None) -> None:
        """Add the gradients of some trajectories; groups must be whole. Raises `NonFiniteUpdate`."""
        if not batch.trajectories:
            return
        settings, reference = self._settings, self._companions.reference
        logp_reference = None if reference is None else reference.logprobs(batch)
        if logp_reference is not None:
            refuse_non_finite(batch, "log-prob of the reference policy", logp_reference)
        penalties = None if reference is None or logp_reference is None else reference.penalties(batch, logp_reference)
        targets, rows, values = self._add_to_critic(batch, penalties)
        credit = assign_credit(batch, values, settings, penalties=penalties)
        refuse_non_finite(batch, "advantage", credit.advantages)
        columns = policy_columns(batch, credit, token_lags, logp_reference)
        step = PolicyStep(batch, self._policy, credit, settings, columns, 0.0 if reference is None else reference.coefficient)
        outputs = step.add() if self._update_policy else step.run(None, {}, None)
        self._parts.append(_Part(batch, penalties, targets, rows, values, credit, step.columns, outputs))

    def finish(self, policy_lr: float) -> UpdateResult:
        """Step critic and policy; the result is that of the whole batch. Raises `NonFiniteUpdate`."""
        if not self._parts:
            return UpdateResult(policy_updated=False, metrics={}, denominators={"policy": 0.0}, trained=[])
        parts, reference = self._parts, self._companions.reference
        batch = Batch([t for part in parts for t in part.batch.trajectories], [])
        credit = _joined([part.credit for part in parts])
        metrics = self._finish_critic(batch)
        if self._update_policy and credit.policy_weights.denominator:
            with naming_trajectories(batch):
                step = self._policy.finish_step(denominator=credit.policy_weights.denominator, learning_rate=policy_lr)
            metrics |= {"policy_loss": step.loss, "policy_grad_norm": step.grad_norm, "policy_lr": policy_lr}
            if self._companions.gradients is not None:
                metrics |= self._companions.gradients.compare(self._policy)
        outputs = [one for part in parts for one in part.outputs]
        logprobs, entropy = join_rows(batch, outputs, "logprob"), join_rows(batch, outputs, "entropy")
        columns = {name: [c for part in parts for c in part.columns[name]] for name in parts[0].columns}
        metrics |= policy_metrics(batch, credit, logprobs, entropy, self._settings, columns)
        if reference is not None and "kl_reference" in metrics:
            metrics["kl_coefficient"] = reference.coefficient
            if self._update_policy:
                reference.adapt(metrics["kl_reference"], len(batch.trajectories))
        values = None if self._critic is None else [v for part in parts for v in part.values or ()]
        return UpdateResult(
            policy_updated="policy_loss" in metrics,
            metrics=metrics,
            denominators=denominators(credit),
            trained=trained_arrays(batch, credit, logprobs, values),
        )

    def _add_to_critic(
        self, batch: Batch, penalties: Sequence[Tensor] | None
    ) -> tuple[Credit | None, Sequence[Row], list[Values] | None]:
        """Its targets, its rows, and the values before its updates."""
        critic, config = self._critic, self._settings.critic
        if critic is None or config is None:
            return None, [], None
        targets, rows = value_targets(batch, critic, self._settings, penalties)
        outputs = critic.add_rows(rows, critic_loss(config))
        values = read_values(batch, outputs, [cut_off(t) for t in batch.trajectories])
        refuse_non_finite(batch, "value", [v.at_actions for v in values])
        return targets, rows, values

    def _finish_critic(self, batch: Batch) -> dict[str, float]:
        """The first update is of what was added; the others need the weights after it, so they read the whole batch."""
        critic, config = self._critic, self._settings.critic
        if critic is None or config is None:
            return {}
        targets = _joined([part.targets for part in self._parts if part.targets is not None])
        assert targets.value_weights is not None
        rate, whole = config.learning_rate, targets.value_weights.denominator
        rows = [row for part in self._parts for row in part.rows]
        with naming_trajectories(batch):
            steps = [critic.finish_step(denominator=whole, learning_rate=rate)]
            for _ in range(config.updates_per_batch - 1):
                steps.append(critic.step(rows, critic_loss(config), denominator=whole, learning_rate=rate))
        before = [v for part in self._parts for v in part.values or ()]
        penalties = [p for part in self._parts for p in part.penalties or ()] or None
        return {
            "value_loss": steps[0].loss,
            "value_loss_last": steps[-1].loss,
            "critic_grad_norm": steps[-1].grad_norm,
            **critic_metrics(batch, before, None, targets, self._settings, penalties),
        }


def _joined(credits: Sequence[Credit]) -> Credit:
    """The credit of all parts together: what is per trajectory in order, denominators summed."""
    first = credits[0]
    return Credit(
        advantages=_chained(c.advantages for c in credits),
        policy_weights=_summed([c.policy_weights for c in credits]),
        returns=None if first.returns is None else _chained(c.returns or [] for c in credits),
        value_weights=None
        if first.value_weights is None
        else _summed([c.value_weights for c in credits if c.value_weights is not None]),
        local=None if first.local is None else _chained(c.local or [] for c in credits),
    )


def _summed(weights: Sequence[Weights]) -> Weights:
    return Weights(_chained(w.per_token for w in weights), sum(w.denominator for w in weights))


def _chained(lists: Iterable[list[Tensor]]) -> list[Tensor]:
    return [tensor for one in lists for tensor in one]
