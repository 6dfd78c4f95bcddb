"""Batches at the edge: one token, one trajectory, one member, nothing to train on, nothing to compare with."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import pytest
import torch
from trainer_samples import reference_model, segment, stored, trained

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import build_batch
from agentrl.trainer.update import train_on
from agentrl.types import Outcome, StoredTrajectory, Termination

GROUP = UUID(int=1)
CRITIC_FREE: dict[str, Any] = {"critic": None, "truncation": "zero"}
GROUPED: dict[str, Any] = {**CRITIC_FREE, "advantage": "group", "group_size": 2, "group_std": True}


def single(number: int = 0, **changes: Any) -> StoredTrajectory:
    """One turn of one token."""
    return stored(number, [segment(0, 3, 1)], **changes)


def cut(number: int = 0, **changes: Any) -> StoredTrajectory:
    """The same, cut off and ungraded."""
    return single(number, outcome=Outcome.POLICY_ENDED, termination=Termination.TRUNCATED_TURNS, reward=None, **changes)


@pytest.mark.parametrize(
    ("trajectories", "settings", "advantages"),
    [
        ([single()], {"gae_lambda": "length_adaptive"}, [[1.0]]),
        ([single()], {"advantage": "token_gae", "normalise": "token"}, [[0.0]]),
        ([single()], {"normalise": "turn"}, [[0.0]]),
        ([single()], {"mapping": "hierarchical"}, [[1.0]]),
        ([single()], {"td_window": 1, "td_clamp": 0.5}, [[0.5]]),
        ([single()], {"gamma": 0.0}, [[1.0]]),
        ([cut()], {"truncation": "bootstrap"}, [[0.0]]),
        ([single(group=GROUP)], GROUPED, [[0.0]]),
        ([single(group=GROUP)], {**GROUPED, "normalise": "trajectory"}, [[0.0]]),
        ([single(group=GROUP), cut(1, group=GROUP)], {**GROUPED, "truncation": "mask"}, [[0.0], [0.0]]),
        ([single()], {**CRITIC_FREE, "advantage": "reinforce_pp"}, [[0.0]]),
    ],
)
def test_one_token__finite_and_as_written_out(
    trajectories: list[StoredTrajectory], settings: dict[str, Any], advantages: list[list[float]]
) -> None:
    batch, algorithm = build_batch(trajectories, max_context=100), AlgorithmConfig(**settings)
    critic = trained(reference_model(), "critic") if algorithm.critic else None
    result = train_on(batch, trained(reference_model()), critic, algorithm, policy_lr=1e-6, update_policy=True)
    assert result.policy_updated
    assert all(math.isfinite(value) for value in result.metrics.values())
    found = [own.advantages.tolist() for own in result.trained]
    assert found == [pytest.approx(own, abs=1e-3) for own in advantages]


@pytest.mark.parametrize(
    "settings",
    [
        {"truncation": "mask"},
        {**GROUPED, "truncation": "mask"},
        {**GROUPED, "truncation": "mask", "normalise": "trajectory"},
    ],
)
def test_nothing_to_train_on__both_models_stay(settings: dict[str, Any]) -> None:
    batch = build_batch([cut(n, group=GROUP) for n in range(2)], max_context=100)
    algorithm = AlgorithmConfig(**settings)
    policy, critic = trained(reference_model()), trained(reference_model(), "critic") if algorithm.critic else None
    models = [model for model in (policy, critic) if model is not None]
    before = [dict(model.export()) for model in models]
    result = train_on(batch, policy, critic, algorithm, policy_lr=1.0, update_policy=True)
    assert not result.policy_updated
    assert result.denominators["policy"] == 0
    after = [dict(model.export()) for model in models]
    assert all(torch.equal(old[name], new[name]) for old, new in zip(before, after, strict=True) for name in old)
