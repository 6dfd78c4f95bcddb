"""The benchmark compares two forms of the same thing."""

from __future__ import annotations

import pytest
import torch

from agentrl.algorithm.advantages import skip_observation_gae
from benchmarks.trainer.gae import batch, measure, token_loop


def test_loop_over_tokens__equals_the_vectorised_form() -> None:
    rewards, values, actions, lam = batch(3, 700)
    assert 0.2 < float(actions.float().mean()) < 0.8
    own = skip_observation_gae(rewards, values, actions, final_values=torch.zeros(3), gamma=1.0, lam=lam)
    assert torch.allclose(own, token_loop(rewards, values, actions, 1.0, lam), atol=1e-5)
    assert own.abs().max() > 0.1


def test_quick_measurement__prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(True)
    assert "loop over tokens" in capsys.readouterr().out
