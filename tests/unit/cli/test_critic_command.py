"""Whose algorithm a critic is pre-trained for."""

from __future__ import annotations

import pytest

from agentrl.cli.critic_command import _config
from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.errors import UsageError


def run_config(preset: str) -> RunConfig:
    return resolve(environment="code_agent", preset=preset, file=None, flags={}, overrides=[]).config


def test_run_with_a_critic__its_own_algorithm_and_the_rate_that_was_given() -> None:
    own = run_config("sao")
    assert _config(own, None, None) == own
    changed = _config(own, None, 0.5)
    assert changed.algorithm.critic is not None
    assert changed.algorithm.critic.learning_rate == 0.5
    assert changed.algorithm.advantage == "token_gae"
    with pytest.raises(UsageError, match="above 0"):
        _config(own, None, 0.0)


def test_run_without_a_critic__needs_the_algorithm_by_name() -> None:
    with pytest.raises(UsageError, match=r"has no critic.*--preset sao_turn"):
        _config(run_config("grpo"), None, None)
    assert _config(run_config("grpo"), "sao_turn", None).algorithm == run_config("sao_turn").algorithm
    with pytest.raises(UsageError, match="Did you mean 'sao_turn'"):
        _config(run_config("grpo"), "sao_trun", None)
