"""A batch that arrives in parts gives the update of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import torch
from trainer_samples import random_trajectory, reference_model, trained

from agentrl.config.algorithm import AlgorithmConfig, CriticConfig, KLConfig
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.pipelined import PipelinedUpdate
from agentrl.trainer.reference import Reference
from agentrl.trainer.update import Companions, NonFiniteUpdate, UpdateResult, train_on
from agentrl.types import Outcome, Termination

CRITIC: Mapping[str, Any] = {"learning_rate": 1e-2, "value_eval": "before", "freeze_attention": False}
CUT = {1: {"outcome": Outcome.POLICY_ENDED, "termination": Termination.TRUNCATED_TOKENS}}
GROUP: Mapping[str, Any] = {"critic": None, "truncation": "zero", "group_size": 4}
SETTINGS = {
    "turns": AlgorithmConfig(critic=CriticConfig(**CRITIC), gae_lambda=1.0),
    "tokens, three critic updates, decoupled": AlgorithmConfig(
        advantage="token_gae", gae_lambda=0.9, loss="decoupled_ppo", ratio_low=0.8, ratio_high=1.2, proximal="interpolated",
        critic=CriticConfig(**CRITIC, gae_lambda=0.95, updates_per_batch=3, value_clip=0.5),
        aggregation="turn_mean",
    ),
    "group, KL in the loss": AlgorithmConfig(
        advantage="group", loss="ppo_clip", ratio_low=0.8, ratio_high=1.2, **GROUP, aggregation="seq_mean_token_mean",
        kl=KLConfig(coefficient=0.1, controller="band"),
    ),
    "gspo, gated": AlgorithmConfig(
        advantage="leave_one_out", loss="gspo", ratio_low=0.9, ratio_high=1.1, **GROUP, aggregation="seq_mean_token_sum",
        sequence_gate="bernoulli_kl", gate_high=0.5, entropy_bonus=0.01,
    ),
}  # fmt: skip


def models(settings: AlgorithmConfig) -> tuple[TrainedModel, TrainedModel | None, Companions]:
    weights = reference_model()
    policy = trained(weights, optimizer=OptimizerSettings(clip_grad=1e9), max_tokens=40)
    critic = None if settings.critic is None else trained(weights, "critic", max_tokens=40)
    reference = None
    if settings.needs_reference:
        reference = Reference(trained(reference_model(seed=5)), settings.kl, settings.kl.coefficient)
    return policy, critic, Companions(reference)


def batch_of(policy: TrainedModel) -> Batch:
    """Eight trajectories in two groups, whose log-probs are not quite those of the policy; one was cut off."""
    stored = []
    for i in range(8):
        made = random_trajectory(i, policy, group=UUID(int=1 + i // 4), **CUT.get(i, {}))
        segments = [replace(s, logprobs=s.logprobs - 0.02 * (i + 1)) for s in made.segments]
        stored.append(replace(made, segments=segments))
    batch = build_batch(stored, max_context=100)
    assert not batch.rejected
    return batch


def in_parts(batch: Batch, settings: AlgorithmConfig, sizes: tuple[int, ...]) -> tuple[UpdateResult, TrainedModel, Any]:
    policy, critic, companions = models(settings)
    update = PipelinedUpdate(policy, critic, settings, update_policy=True, companions=companions)
    start = 0
    for size in sizes:
        own = batch.trajectories[start : start + size]
        update.add(Batch(own, []), [torch.zeros_like(t.token_version) for t in own])
        start += size
    return update.finish(1e-3), policy, critic


def gradients(model: TrainedModel) -> list[torch.Tensor]:
    return [p.main_grad.clone() for p in model.module.parameters() if getattr(p, "main_grad", None) is not None]


@pytest.mark.parametrize("name", SETTINGS)
def test_same_gradients(name: str) -> None:
    settings = SETTINGS[name]
    policy, critic, companions = models(settings)
    batch = batch_of(policy)
    lags = [torch.zeros_like(t.token_version) for t in batch.trajectories]
    whole = train_on(
        batch, policy, critic, settings, policy_lr=1e-3, update_policy=True, token_lags=lags, companions=companions
    )
    parts, own_policy, own_critic = in_parts(batch, settings, (4, 4) if settings.group_size > 1 else (1, 4, 3))
    pairs = [(policy, own_policy)] + ([] if critic is None else [(critic, own_critic)])
    for one, other in pairs:
        largest = max(float(g.abs().max()) for g in gradients(one))
        assert largest > 1e-4
        for a, b in zip(gradients(one), gradients(other), strict=True):
            assert torch.allclose(a, b, atol=1e-5 * largest, rtol=1e-4)
    assert parts.denominators == pytest.approx(whole.denominators)
    assert set(parts.metrics) == set(whole.metrics)
    for metric, value in whole.metrics.items():
        assert parts.metrics[metric] == pytest.approx(value, rel=2e-3, abs=1e-5), metric
    for a, b in zip(parts.trained, whole.trained, strict=True):
        assert a.trajectory == b.trajectory
        assert torch.allclose(torch.from_numpy(a.advantages), torch.from_numpy(b.advantages), atol=1e-5)


def test_one_step__nothing_moves_before_the_end_and_a_dropped_update_leaves_no_trace() -> None:
    settings = SETTINGS["turns"]
    policy, critic, companions = models(settings)
    batch = batch_of(policy)
    before = dict(policy.export())
    abandoned = PipelinedUpdate(policy, critic, settings, update_policy=True, companions=companions)
    abandoned.add(batch)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())
    update = PipelinedUpdate(policy, critic, settings, update_policy=True, companions=companions)
    update.add(batch)
    norm = update.finish(1e-3).metrics["policy_grad_norm"]
    assert norm == pytest.approx(in_parts(batch, settings, (8,))[0].metrics["policy_grad_norm"], rel=1e-5)


def test_warm_up_and_nothing_to_train__leave_the_policy_alone() -> None:
    settings = SETTINGS["turns"]
    policy, critic, companions = models(settings)
    before = dict(policy.export())
    update = PipelinedUpdate(policy, critic, settings, update_policy=False, companions=companions)
    update.add(Batch([], []))
    update.add(batch_of(policy))
    result = update.finish(1e-3)
    assert not result.policy_updated
    assert "value_loss" in result.metrics
    empty = PipelinedUpdate(policy, critic, settings, update_policy=True, companions=companions).finish(1e-3)
    assert (empty.policy_updated, empty.trained) == (False, [])
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())


def test_non_finite_stops__before_the_policy_is_touched() -> None:
    settings = SETTINGS["turns"]
    policy, critic, companions = models(settings)
    batch = batch_of(policy)
    before = dict(policy.export())
    bad = replace(batch.trajectories[2], reward=float("nan"))
    update = PipelinedUpdate(policy, critic, settings, update_policy=True, companions=companions)
    update.add(Batch(batch.trajectories[:2], []))
    with pytest.raises(NonFiniteUpdate) as error:
        update.add(Batch([bad], []))
    assert error.value.trajectories == (bad.id,)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())
