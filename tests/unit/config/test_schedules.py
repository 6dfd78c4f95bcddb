"""Schedules as settings: what each means in numbers, and which combinations are refused."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.config.schedule import Pace
from agentrl.errors import UsageError


def config(*overrides: str, preset: str = "sao_turn") -> RunConfig:
    return resolve(environment="code_agent", preset=preset, file=None, flags={}, overrides=overrides).config


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        ("sao_turn", ["trainer.schedule=synchronous"], Pace("synchronous", 64, 64, 0, 0, None)),
        ("sao_turn", ["trainer.schedule=drop_last"], Pace("drop_last", 61, 64, 1, 0, None)),
        ("sao_turn", ["trainer.schedule=drop_last", "trainer.drop_share=0.1", "staleness.lag=2"],
         Pace("drop_last", 58, 64, 2, 0, None)),
        ("sao_turn", ["trainer.schedule=drop_last", "trainer.batch=100", "trainer.drop_share=0.07"],
         Pace("drop_last", 93, 100, 1, 0, None)),
        ("sao_turn", ["trainer.schedule=pipelined"], Pace("pipelined", 64, 64, 0, 0, 8)),
        ("sao_turn", ["trainer.schedule=pipelined", "trainer.pipeline_part=20"], Pace("pipelined", 64, 64, 0, 0, 20)),
        ("grpo", ["trainer.schedule=pipelined", "trainer.batch=24"], Pace("pipelined", 24, 24, 0, 0, 8)),
        ("grpo", ["trainer.schedule=drop_last", "trainer.batch=160"], Pace("drop_last", 152, 160, 1, 0, None)),
        ("sao_turn", ["trainer.schedule=async", "trainer.batch_min=32"], Pace("async", 32, 64, 1, None, None)),
        ("grpo", ["trainer.schedule=group_async"], Pace("group_async", 64, 64, 1, None, None)),
    ],
)  # fmt: skip
def test_schedule__means_these_numbers(preset: str, overrides: list[str], expected: Pace) -> None:
    assert config(*overrides, preset=preset).pace == expected


@pytest.mark.parametrize(
    ("preset", "overrides", "schedule"),
    [("sao_turn", [], "async"), ("grpo", [], "group_async"), ("sao_turn", ["staleness.lag=0"], "synchronous")],
)
def test_no_schedule_named__follows_from_lag_and_groups(preset: str, overrides: list[str], schedule: str) -> None:
    assert config(*overrides, preset=preset).pace.schedule == schedule


@pytest.mark.parametrize(
    ("preset", "overrides", "said"),
    [
        ("sao_turn", {"schedule": "synchronous", "staleness.lag": 2}, "the lag bound is 2: leave staleness.lag"),
        ("sao_turn", {"schedule": "synchronous", "staleness.eta": 0.25}, "the lag bound is 2: leave staleness.lag"),
        ("grpo", {"schedule": "pipelined", "staleness.eta": 1}, "unbounded (staleness.eta=1): leave staleness.lag and"),
        ("sao_turn", {"schedule": "drop_last", "staleness.lag": 0}, "the lag bound is 0: set staleness.lag to 1 or more"),
        ("sao_turn", {"schedule": "async", "staleness.lag": 0}, "the lag bound is 0: set staleness.lag to 1 or more"),
        ("grpo", {"batch_min": 16, "staleness.lag": 2},
         "at most 48 trajectories are under way, so no update could take trainer.batch (64): raise trainer.batch_min to 24"),
        ("sao", {"batch_min": 20, "staleness.lag": 1}, "to 32 or more, or staleness.lag to 3 or more"),
        ("grpo", {"schedule": "async"}, "group_size is 8: use trainer.schedule=group_async"),
        ("sao_turn", {"schedule": "group_async"}, "group_size is 1: use trainer.schedule=async"),
        ("sao_turn", {"schedule": "drop_last", "staleness.lag": 3, "staleness.refresh_every": 3},
         "refresh_every is 3: set it to 1"),
        ("sao_turn", {"schedule": "drop_last", "batch": 16},
         "trainer.drop_share (0.05) of trainer.batch (16) is less than one trajectory: raise it to 0.0625"),
        ("grpo", {"schedule": "drop_last"}, "less than one group of 8: raise it to 0.125"),
        ("sao_turn", {"schedule": "drop_last", "batch_min": 32}, "trainer.schedule=drop_last: set trainer.drop_share"),
        ("sao_turn", {"drop_share": 0.1}, "trainer.drop_share (0.1) is not read with trainer.schedule=async"),
        ("sao_turn", {"pipeline_part": 8}, "trainer.pipeline_part (8) is not read with trainer.schedule=async"),
        ("grpo", {"schedule": "pipelined", "pipeline_part": 12},
         "trainer.pipeline_part (12) must be a multiple of algorithm.group_size (8)"),
        ("sao_turn", {"schedule": "pipelined", "long_share": 0.2, "long_tokens": 9}, "trainer.long_share (0.2) keeps places"),
        ("reinforce_pp", {"schedule": "pipelined"}, "advantage=reinforce_pp whitens returns over the whole"),
        ("sao_turn", {"schedule": "pipelined", "algorithm.normalise": "turn"}, "algorithm.normalise=turn whitens"),
        ("sao_turn", {"schedule": "pipelined", "algorithm.critic.value_eval": "after"}, "value_eval=after reads values after"),
        ("grpo", {"schedule": "pipelined", "algorithm.passes": 2}, "algorithm.passes is 2"),
        ("sao_turn", {"schedule": "sync"}, "trainer.schedule"),
        ("sao_turn", {"schedule": "[1]"}, "trainer.schedule"),
    ],
)  # fmt: skip
def test_impossible__refused_with_both_values_and_the_way_out(preset: str, overrides: dict[str, Any], said: str) -> None:
    settings = [f"{key if '.' in key else f'trainer.{key}'}={value}" for key, value in overrides.items()]
    with pytest.raises(UsageError) as error:
        config(*settings, preset=preset)
    assert said in str(error.value)
