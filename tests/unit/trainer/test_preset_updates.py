"""Every preset and every loss makes an update from a batch; what depends on a whole trajectory is the same for every split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import torch
from trainer_samples import VOCABULARY, random_trajectory, reference_model, trained

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.load import resolve
from agentrl.config.presets import PRESETS
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.gradients import GradientMemory
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.trainer.reference import Reference
from agentrl.trainer.update import Companions, NonFiniteUpdate, UpdateResult, train_on

SEED = 3


def preset(name: str, *overrides: str, flags: dict[str, Any] | None = None) -> AlgorithmConfig:
    resolved = resolve(environment="code_agent", preset=name, file=None, flags=flags or {}, overrides=list(overrides))
    return resolved.config.algorithm


def group_batch(policy: TrainedModel, n: int = 16) -> Batch:
    """Two groups whose log-probs were sampled by weights a little away from ``policy``'s; every third token is 1 behind."""
    batch = build_batch([random_trajectory(i, policy, group=UUID(int=1 + i // 8)) for i in range(n)], max_context=100)
    generator = torch.Generator().manual_seed(SEED)
    for trajectory in batch.trajectories:
        trajectory.logp_rollout.add_(torch.randn(trajectory.n_actions, generator=generator) * 0.1)
    return batch


def other_policy(settings: AlgorithmConfig) -> Reference:
    return Reference(trained(reference_model(seed=1)), settings.kl, settings.kl.coefficient)


def update(settings: AlgorithmConfig, *, max_tokens: int = 4096, lr: float = 1e-3) -> tuple[UpdateResult, TrainedModel]:
    reference = reference_model()
    policy = trained(reference, max_tokens=max_tokens)
    critic = trained(reference, "critic", max_tokens=max_tokens) if settings.critic else None
    first = (
        Reference(trained(reference_model(seed=1)), settings.kl, settings.kl.coefficient) if settings.needs_reference else None
    )
    batch = group_batch(policy)
    lags = [(torch.arange(t.n_actions) % 3 == 0).long() for t in batch.trajectories]
    result = train_on(
        batch,
        policy,
        critic,
        settings,
        policy_lr=lr,
        update_policy=True,
        token_lags=lags,
        companions=Companions(first, GradientMemory() if settings.gradient_cosine else None),
    )
    return result, policy


def moved(policy: TrainedModel) -> bool:
    start = dict(trained(reference_model()).export())
    return any(not torch.equal(tensor, start[name]) for name, tensor in policy.export())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset__updates_the_policy_with_finite_numbers(name: str) -> None:
    result, policy = update(preset(name))
    assert result.policy_updated
    assert moved(policy)
    assert result.denominators["policy"] > 0
    assert all(torch.isfinite(torch.tensor(value)) for value in result.metrics.values())
    assert {"ess_token", "ess_sequence", "kl_k3", "kept_lag_0", "kept_lag_1", "chi2", "entropy"} <= set(result.metrics)


CHOICES = [
    ("cispo", []),
    ("gspo", ["algorithm.passes=2"]),
    ("gspo", ["algorithm.ratio_to=proximal", "algorithm.passes=2"]),
    ("grpo", ["algorithm.sequence_gate=geometric", "algorithm.gate_low=0.98", "algorithm.gate_high=1.02"]),
    ("grpo", ["algorithm.sequence_gate=product", "algorithm.gate_high=1.2"]),
    ("grpo", ["algorithm.sequence_gate=bernoulli_kl", "algorithm.gate_high=0.001"]),
    ("grpo", ["algorithm.kl.coefficient=0.1", "algorithm.entropy_bonus=0.01", "algorithm.dual_clip=3.0"]),
    ("decoupled_ppo", ["algorithm.proximal=interpolated", "algorithm.correction=mask"]),
    ("decoupled_ppo", ["algorithm.correction=cap", "algorithm.passes=2"]),
    ("sao_turn", ["algorithm.mapping=hierarchical", "algorithm.token_lambda=0.9", "algorithm.aggregation=turn_mean"]),
    ("sao_turn", ["algorithm.turn_value=mean", "algorithm.td_window=1", "algorithm.normalise=turn"]),
    ("sao", ["algorithm.loss=reinforce", "algorithm.td_clamp=0.5", "algorithm.normalise=token"]),
    ("sao", ["algorithm.critic.value_clip=0.2"]),
    ("grpo", ["algorithm.advantage=turn_group", "algorithm.normalise=turn", "algorithm.gamma=0.5"]),
    ("grpo", ["algorithm.advantage=anchor_group", "algorithm.anchor_weight=0.5", "algorithm.overlong_limit=6"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "overrides"), CHOICES, ids=[f"{n}-{o[0] if o else ''}" for n, o in CHOICES])
def test_update_in_any_number_of_micro_batches__gives_the_same_loss_and_weights(name: str, overrides: list[str]) -> None:
    settings = preset(name, *overrides)
    whole, one = update(settings)
    split, many = update(settings, max_tokens=30)
    assert moved(one)
    assert split.metrics.keys() == whole.metrics.keys()
    for metric, value in whole.metrics.items():
        assert split.metrics[metric] == pytest.approx(value, rel=1e-3, abs=1e-5), metric
    for (_, left), (_, right) in zip(one.export(), many.export(), strict=True):
        assert torch.allclose(left, right, atol=1e-4)


def test_gate__leaves_whole_trajectories_out_and_keeps_them_in_the_denominator() -> None:
    open_gate, _ = update(preset("grpo", "algorithm.sequence_gate=geometric", "algorithm.gate_high=2.0"))
    narrow, _ = update(
        preset("grpo", "algorithm.sequence_gate=geometric", "algorithm.gate_low=0.98", "algorithm.gate_high=1.02")
    )
    assert open_gate.metrics["gated_fraction"] == 0.0
    assert 0 < narrow.metrics["gated_fraction"] < 1
    assert narrow.denominators == open_gate.denominators
    assert narrow.metrics["kept_fraction"] <= 1 - narrow.metrics["gated_fraction"] + 1e-6


def test_passes__are_one_update_for_the_ledger_and_move_further_each_time() -> None:
    once, _ = update(preset("decoupled_ppo"))
    thrice, _ = update(preset("decoupled_ppo", "algorithm.passes=3"))
    assert thrice.metrics["policy_loss"] == pytest.approx(once.metrics["policy_loss"], rel=1e-5)
    assert thrice.metrics["policy_loss_last"] < thrice.metrics["policy_loss"]
    assert "policy_loss_last" not in once.metrics
    assert len(thrice.trained) == len(once.trained)
    for left, right in zip(once.trained, thrice.trained, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)  # those before the first step


def test_proximal_ratio_in_one_pass__is_one_whoever_sampled() -> None:
    result, _ = update(preset("grpo", "algorithm.ratio_to=proximal", "algorithm.ratio_low=0.99", "algorithm.ratio_high=1.01"))
    assert result.metrics["kept_fraction"] == 1.0
    rollout, _ = update(preset("grpo", "algorithm.ratio_low=0.99", "algorithm.ratio_high=1.01"))
    assert rollout.metrics["kept_fraction"] < 0.9


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_kl_to_the_reference__pulls_the_policy_towards_it(place: str) -> None:
    estimator = "k2" if place == "loss" else "k1"
    kl = (f"algorithm.kl.place={place}", f"algorithm.kl.estimator={estimator}", "algorithm.kl.coefficient=5.0")
    near, pulled = update(preset("reinforce_pp" if place == "reward" else "grpo", *kl), lr=3e-3)
    far, free = update(preset("reinforce_pp" if place == "reward" else "grpo", "algorithm.kl.coefficient=0"), lr=3e-3)
    first = dict(trained(reference_model(seed=1)).export())

    def along(policy: TrainedModel) -> float:
        start = dict(trained(reference_model()).export())
        return sum(float(((t - start[n]) * (first[n] - start[n])).sum()) for n, t in policy.export())

    assert near.metrics["kl_coefficient"] == 5.0
    assert "kl_reference" not in far.metrics
    assert along(pulled) > along(free)


@pytest.mark.parametrize(("controller", "grows"), [("fixed", False), ("band", True), ("ziegler", True)])
def test_kl_controller__answers_the_measured_kl_once_a_step(controller: str, grows: bool) -> None:
    settings = preset("grpo", "algorithm.kl.coefficient=0.01", f"algorithm.kl.controller={controller}")
    policy = trained(reference_model())
    reference = other_policy(settings)
    result = train_on(
        group_batch(policy), policy, None, settings, policy_lr=1e-3, update_policy=True, companions=Companions(reference)
    )
    assert result.metrics["kl_reference"] > 0.05
    assert result.metrics["kl_coefficient"] == 0.01  # what the step used
    assert (reference.coefficient > 0.01) is grows


@pytest.mark.parametrize("whose", ["policy", "reference"])
def test_non_finite_stops__names_the_trajectory_before_the_policy_moves(whose: str) -> None:
    settings = preset("grpo", "algorithm.kl.coefficient=0.1")
    policy = trained(reference_model(tied=False))
    reference = Reference(trained(reference_model(tied=False)), settings.kl, settings.kl.coefficient)
    batch = group_batch(policy)
    for trajectory in batch.trajectories:
        trajectory.contexts[0].tokens.clamp_(max=VOCABULARY - 2)
    batch.trajectories[3].contexts[0].tokens[0] = VOCABULARY - 1
    with torch.no_grad():
        spoilt = policy if whose == "policy" else reference.model
        spoilt.module.embedding.word_embeddings.weight[VOCABULARY - 1] = torch.inf
    before = dict(policy.export())
    with pytest.raises(NonFiniteUpdate, match="agentrl show") as caught:
        train_on(batch, policy, None, settings, policy_lr=1e-3, update_policy=True, companions=Companions(reference))
    assert caught.value.trajectories == (batch.trajectories[3].id,)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())


def test_reward_beyond_float32__names_its_trajectory() -> None:
    settings = preset("sao")
    policy, critic = trained(reference_model()), trained(reference_model(), "critic")
    batch = build_batch([random_trajectory(i, policy) for i in range(4)], max_context=100)
    batch.trajectories[2] = replace(batch.trajectories[2], reward=1e30)
    before = dict(policy.export())
    with pytest.raises(NonFiniteUpdate, match="critic: loss inf") as caught:
        train_on(batch, policy, critic, settings, policy_lr=1e-3, update_policy=True)
    assert caught.value.trajectories == (batch.trajectories[2].id,)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())


def test_entropy_bonus__raises_the_entropy() -> None:
    after = []
    for bonus in (0.0, 1.0):
        settings = preset("grpo", f"algorithm.entropy_bonus={bonus}")
        _, policy = update(settings, lr=3e-3)
        batch = group_batch(trained(reference_model()))
        result = train_on(batch, policy, None, settings, policy_lr=1e-3, update_policy=False)
        after.append(result.metrics["entropy"])
    assert after[1] > after[0]


def test_gradient_cosine__compares_each_step_with_the_one_before() -> None:
    settings = preset("grpo", "algorithm.gradient_cosine=true")
    policy, memory = trained(reference_model()), GradientMemory()
    seen = []
    for _ in range(2):
        result = train_on(
            group_batch(policy),
            policy,
            None,
            settings,
            policy_lr=1e-12,
            update_policy=True,
            companions=Companions(None, memory),
        )
        seen.append(result.metrics.get("gradient_cosine"))
    assert seen[0] is None
    assert seen[1] == pytest.approx(1.0, abs=1e-4)
