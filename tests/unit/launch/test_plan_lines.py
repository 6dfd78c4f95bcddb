"""What the plan says of the algorithm before anything starts."""

from __future__ import annotations

import pytest

from agentrl.config.load import resolve
from agentrl.launch.freshness import staleness_line
from agentrl.launch.plan import _algorithm_line, _schedule_line, _trainer_line


def line(preset: str, *overrides: str, real: bool = True) -> str:
    flags = {"model.path": "/some/model"} if real else {}
    return _algorithm_line(
        resolve(
            environment="code_agent",
            preset=preset,
            file=None,
            flags=flags,
            overrides=list(overrides),
            defaults_of=lambda name: {"algorithm.ratio_low": 0.2, "algorithm.ratio_high": 4.0},
        )
    )


@pytest.mark.parametrize(
    ("overrides", "real", "said"),
    [
        ([], True, "dis with ratio bounds (0.2, 4) of environment code_agent"),
        ([], False, "dis with ratio bounds (0.7, 1.5) of overlay tiny"),
        (["algorithm.ratio_high=6.0"], True, "dis with ratio bounds (0.2, 6) of environment code_agent and flag"),
    ],
)
def test_bounds_of_dis__are_printed_with_who_chose_them(overrides: list[str], real: bool, said: str) -> None:
    assert said in line("sao_turn", *overrides, real=real)
    assert "arXiv 2607.07508" in line("sao_turn", *overrides, real=real)


@pytest.mark.parametrize(("size", "noted"), [(4, True), (8, False), (16, False), (32, True)])
def test_group_size_outside_eight_to_sixteen__is_noted_and_used(size: int, noted: bool) -> None:
    text = line("grpo", f"algorithm.group_size={size}")
    assert f"groups of {size}" in text
    assert ("note: 8 to 16 is sensible" in text) is noted


@pytest.mark.parametrize(
    ("preset", "overrides", "noted"),
    [
        ("decoupled_ppo", [], True),
        ("decoupled_ppo", ["algorithm.passes=2"], False),
        ("decoupled_ppo", ["algorithm.proximal=interpolated"], False),
        ("grpo", [], False),
        ("grpo", ["algorithm.ratio_to=proximal"], True),
        ("gspo", [], False),
        ("gspo", ["algorithm.passes=1"], True),
    ],
)
def test_bounds_that_clip_nothing__are_noted(preset: str, overrides: list[str], noted: bool) -> None:
    assert ("so nothing is clipped" in line(preset, *overrides)) is noted


def test_group_redundancy__is_printed() -> None:
    assert "groups of 8, the first of 10 episodes" in line("grpo", "rollout.group_redundancy=2")


def test_reference_and_passes__are_printed_where_they_are() -> None:
    assert "k3 KL to the first policy in the loss, coefficient 0.01" in line("grpo")
    assert "2 passes over each batch" in line("gspo")
    assert "KL" not in line("sao").split(": ")[1]
    assert "ratio bounds" not in line("sao", "algorithm.loss=reinforce")


@pytest.mark.parametrize(
    ("preset", "overrides", "schedule", "staleness", "steps"),
    [
        ("sao", [], "async, since a lag is allowed and there are no groups", "at most 128 episodes between", "of 64 "),
        ("sao", ["staleness.lag=0"], "synchronous, since the lag bound is 0: rounds of 64", "strictly synchronous", "of 64 "),
        ("grpo", [], "group_async, since a lag is allowed and there are groups of 8", "at most 128 episodes", "of 64 "),
        ("sao", ["trainer.batch_min=40"], "async, since", "at most 1 policy update, at most 80 episodes", "of 40 to 64 "),
        ("sao", ["trainer.schedule=drop_last"], "drop_last: rounds of 64; an update starts when all but 3 are ready",
         "lag of at most 1 policy update, at most 64 episodes", "of 61 to 64 "),
        ("sao", ["trainer.schedule=pipelined"], "pipelined: rounds of 64; 8 or more that are ready are trained on", "strictly",
         "of 64 "),
    ],
)  # fmt: skip
def test_schedule__is_printed_with_its_numbers(
    preset: str, overrides: list[str], schedule: str, staleness: str, steps: str
) -> None:
    config = resolve(environment="code_agent", preset=preset, file=None, flags={}, overrides=overrides).config
    assert schedule in _schedule_line(config)
    assert staleness in staleness_line(config, single_turn=False)
    assert steps in _trainer_line(config)
