"""One update: order, selection by the ratio, metrics, what is stored, and stopping before harm."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from trainer_samples import VOCABULARY, random_trajectory, reference_model, trained

from agentrl.config.algorithm import AlgorithmConfig, CriticConfig
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.trainer.rows import action_rows, join_rows
from agentrl.trainer.update import NonFiniteUpdate, train_on
from agentrl.types import Outcome, Termination


def make_batch(policy: TrainedModel, n: int = 6, **changes: Any) -> Batch:
    batch = build_batch([random_trajectory(i, policy, **changes) for i in range(n)], max_context=100)
    assert not batch.rejected
    return batch


def settings(**changes: Any) -> AlgorithmConfig:
    critic = {"learning_rate": 1e-2, "value_eval": "before", "freeze_attention": False} | changes.pop("critic", {})
    return AlgorithmConfig(critic=CriticConfig(**critic), gae_lambda=1.0, ratio_low=0.7, ratio_high=1.5, **changes)


@pytest.fixture
def models() -> tuple[TrainedModel, TrainedModel]:
    reference = reference_model()
    return trained(reference), trained(reference, "critic")


def weights(model: TrainedModel) -> dict[str, torch.Tensor]:
    return dict(model.export())


def moved(model: TrainedModel, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(tensor, before[name]) for name, tensor in model.export())


@pytest.mark.parametrize("advantage", ["turn_gae", "token_gae"])
def test_on_policy_batch__ratios_are_one_and_both_models_move(
    models: tuple[TrainedModel, TrainedModel], advantage: str
) -> None:
    policy, critic = models
    batch = make_batch(policy)
    before = weights(policy), weights(critic)
    result = train_on(batch, policy, critic, settings(advantage=advantage), policy_lr=1e-3, update_policy=True)
    assert result.policy_updated
    assert moved(policy, before[0])
    assert moved(critic, before[1])
    metrics = result.metrics
    assert metrics["kept_fraction"] == 1.0
    assert metrics["logp_gap_max"] < 1e-5
    assert metrics["ess_token"] == pytest.approx(1.0, abs=1e-6)
    assert abs(metrics["kl_k3"]) < 1e-8
    assert metrics["policy_grad_norm"] > 0
    assert metrics["value_loss_last"] < metrics["value_loss"]
    assert result.denominators["policy"] == batch.n_actions
    assert all(np.isfinite(value) for value in metrics.values())


def test_on_policy_gradient__is_the_policy_gradient(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    batch = make_batch(policy)
    result = train_on(batch, policy, critic, settings(), policy_lr=1e-3, update_policy=True)
    expected = -sum(float((t.advantages * t.logprobs).sum()) for t in result.trained) / batch.n_actions
    assert result.metrics["policy_loss"] == pytest.approx(expected, rel=1e-4)


def test_stored_arrays__are_what_the_step_used(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    batch = make_batch(policy)
    result = train_on(batch, policy, critic, settings(), policy_lr=1e-3, update_policy=True)
    for kept, trajectory in zip(result.trained, batch.trajectories, strict=True):
        assert kept.trajectory == trajectory.id
        assert kept.values is not None
        assert kept.returns is not None
        for array in (kept.logprobs, kept.values, kept.advantages, kept.returns):
            assert array.dtype == np.float32
            assert len(array) == trajectory.n_actions
        assert np.allclose(kept.logprobs, trajectory.logp_rollout.numpy(), atol=1e-5)
        assert not kept.values.any()  # a fresh critic, values read before its updates
        assert np.allclose(kept.advantages, trajectory.reward)


def test_critic_warm_up__leaves_the_policy_alone_and_still_reports_it(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    before = weights(policy), weights(critic)
    result = train_on(make_batch(policy), policy, critic, settings(), policy_lr=1e-3, update_policy=False)
    assert not result.policy_updated
    assert not moved(policy, before[0])
    assert moved(critic, before[1])
    assert "policy_loss" not in result.metrics
    assert result.metrics["kept_fraction"] == 1.0
    assert all(len(t.logprobs) for t in result.trained)


def test_update_order__values_after_the_critic_updates_only_when_asked(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    batch = make_batch(policy)
    result = train_on(batch, policy, critic, settings(critic={"value_eval": "after"}), policy_lr=1e-3, update_policy=True)
    now = join_rows(batch, critic.forward(action_rows(batch, {})), "value")
    for kept, values in zip(result.trained, now, strict=True):
        assert kept.values is not None
        assert np.allclose(kept.values, values.numpy(), atol=1e-6)
        assert kept.values.any()
    assert 0 < result.metrics["adv_shrink"] < 1.5
    assert result.metrics["value_mean"] == 0.0  # fit is judged by the values before


@pytest.mark.parametrize("updates", [1, 3])
def test_critic_updates_per_batch__as_many_as_set(updates: int) -> None:
    reference = reference_model()
    policy, critic = trained(reference), trained(reference, "critic")
    train_on(
        make_batch(policy), policy, critic, settings(critic={"updates_per_batch": updates}), policy_lr=1e-3, update_policy=True
    )
    assert critic.updates == updates


def test_tokens_outside_the_ratio_bounds__train_nothing_and_stay_in_the_denominator(
    models: tuple[TrainedModel, TrainedModel],
) -> None:
    policy, critic = models
    batch = make_batch(policy)
    for trajectory in batch.trajectories:
        trajectory.logp_rollout[0] += 2.0
        trajectory.logp_rollout[1] -= 2.0
    result = train_on(batch, policy, critic, settings(), policy_lr=1e-3, update_policy=True)
    share = len(batch.trajectories) / batch.n_actions
    assert result.metrics["masked_high"] == pytest.approx(share)
    assert result.metrics["masked_low"] == pytest.approx(share)
    assert result.metrics["kept_fraction"] == pytest.approx(1 - 2 * share)
    kept = -sum(float((t.advantages * t.logprobs)[2:].sum()) for t in result.trained) / batch.n_actions
    assert result.metrics["policy_loss"] == pytest.approx(kept, rel=1e-4)


def test_cut_off_trajectories__bootstrap_from_the_state_after_the_last_token(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    train_on(make_batch(policy), policy, critic, settings(), policy_lr=1e-3, update_policy=False)
    batch = make_batch(policy, 3, outcome=Outcome.POLICY_ENDED, termination=Termination.TRUNCATED_TOKENS)
    finals = join_rows(batch, critic.forward(action_rows(batch, {}, with_final=[True] * 3)), "value")
    result = train_on(batch, policy, critic, settings(), policy_lr=1e-3, update_policy=True)
    for kept, values in zip(result.trained, finals, strict=True):
        assert kept.returns is not None
        assert kept.values is not None
        assert len(kept.values) == len(values) - 1
        assert kept.returns[-1] == pytest.approx(float(values[-1]), abs=1e-5)


@pytest.mark.parametrize("truncation", ["bootstrap", "zero", "mask"])
def test_local_advantages__include_the_last_unit_of_a_cut_off_episode(
    models: tuple[TrainedModel, TrainedModel], truncation: str
) -> None:
    policy, critic = models
    train_on(make_batch(policy), policy, critic, settings(), policy_lr=1e-3, update_policy=False)
    whole = make_batch(policy, 2)
    cut = make_batch(policy, 2, outcome=Outcome.POLICY_ENDED, termination=Termination.TRUNCATED_TOKENS)
    for batch, ended in ((whole, True), (cut, False)):
        finals = join_rows(batch, critic.forward(action_rows(batch, {}, with_final=[True] * 2)), "value")
        result = train_on(batch, policy, critic, settings(truncation=truncation), policy_lr=1e-3, update_policy=False)
        for kept, trajectory, values in zip(result.trained, batch.trajectories, finals, strict=True):
            starts = values[:-1][torch.tensor([0, 4])]
            after = torch.stack([starts[1], torch.tensor(0.0) if ended else values[-1]])
            assert kept.local_advantages is not None
            assert kept.local_advantages.dtype == np.float32
            assert len(kept.local_advantages) == trajectory.n_units == 2
            assert np.allclose(kept.local_advantages, (after - starts).numpy(), atol=1e-6)


def test_batch_with_everything_left_out__no_policy_step(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    batch = make_batch(policy, 2, outcome=Outcome.POLICY_ENDED, termination=Termination.TRUNCATED_TOKENS)
    before = weights(policy), weights(critic)
    result = train_on(batch, policy, critic, settings(truncation="mask"), policy_lr=1e-3, update_policy=True)
    assert not result.policy_updated
    assert result.denominators == {"policy": 0.0, "value": 0.0}
    assert not moved(policy, before[0])
    assert not moved(critic, before[1])


def test_empty_batch__nothing_happens(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    before = weights(policy)
    result = train_on(Batch([], []), policy, critic, settings(), policy_lr=1e-3, update_policy=True)
    assert not result.policy_updated
    assert result.trained == []
    assert not moved(policy, before)


def test_group_advantages_with_ppo_clip__no_critic_needed() -> None:
    policy = trained(reference_model())
    group = uuid4()
    config = AlgorithmConfig(
        advantage="group", critic=None, group_size=2, loss="ppo_clip", ratio_low=0.8, ratio_high=1.28, truncation="zero"
    )
    batch = make_batch(policy, 4, group=group)
    before = weights(policy)
    result = train_on(batch, policy, None, config, policy_lr=1e-3, update_policy=True)
    assert moved(policy, before)
    assert [float(t.advantages[0]) for t in result.trained] == [-0.5, 0.5, -0.5, 0.5]
    assert all(t.values is None and t.returns is None for t in result.trained)


def test_non_finite_stops__critic_values_name_their_trajectories(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    batch = make_batch(policy, 3)
    for trajectory in batch.trajectories:
        trajectory.contexts[0].tokens.clamp_(max=VOCABULARY - 2)
    batch.trajectories[1].contexts[0].tokens[0] = VOCABULARY - 1
    with torch.no_grad():
        critic.module.embedding.word_embeddings.weight[VOCABULARY - 1] = torch.inf
        critic.module.output_layer.weight.fill_(0.1)
    before = weights(policy)
    with pytest.raises(NonFiniteUpdate, match="agentrl show") as caught:
        train_on(batch, policy, critic, settings(), policy_lr=1e-3, update_policy=True)
    assert caught.value.trajectories == (batch.trajectories[1].id,)
    assert not moved(policy, before)


def test_repeated_updates_on_one_batch__good_trajectories_become_likelier(models: tuple[TrainedModel, TrainedModel]) -> None:
    policy, critic = models
    for _ in range(12):
        batch = make_batch(policy)
        result = train_on(batch, policy, critic, settings(), policy_lr=3e-3, update_policy=True)
    first = make_batch(trained(reference_model()))
    good = [i for i, t in enumerate(first.trajectories) if t.reward == 1.0]
    assert sum(result.trained[i].logprobs.sum() for i in good) > sum(
        float(first.trajectories[i].logp_rollout.sum()) for i in good
    )
