"""The step line: fixed columns that fit a terminal of 160."""

from __future__ import annotations

import math

import pytest

from agentrl.trainer.console import COLUMNS, Console

METRICS = {
    "reward_mean": -1.345, "success": 0.5, "trajectories": 65_536, "lag_mean": 10.25, "lag_max": 1000, "hit_rate": 0.97,
    "turns_mean": 123.4, "truncated_share": 0.15, "wall_s": 1234.56, "tokens_per_s": 123_456.0, "kept_fraction": 0.987,
    "kl_k3": 0.01234, "policy_grad_norm": 1.25, "explained_variance": -0.5, "sync_share": 1.0, "wait_s": 900.0,
}  # fmt: skip


def lines(capsys: pytest.CaptureFixture[str], metrics: dict[str, float]) -> list[str]:
    Console(1000).step(17, metrics, 128, [])
    return capsys.readouterr().out.splitlines()


def test_step_line__fits_and_stands_under_its_titles(capsys: pytest.CaptureFixture[str]) -> None:
    header, line = lines(capsys, METRICS)
    assert len(header) == len(line) < 160
    ends = [2 + sum(width for _, width in COLUMNS[: i + 1]) + 2 * i for i in range(len(COLUMNS))]
    shown = {title: line[end - width : end].strip() for (title, width), end in zip(COLUMNS, ends, strict=True)}
    assert (shown["step"], shown["s"], shown["cut"], shown["grad"]) == ("17/1000", "1234.6", "15%", "1.250")
    assert shown["waits for"] == "rollouts 73%"


def test_number_that_does_not_exist__is_a_dash_and_infinity_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = lines(capsys, {k: v for k, v in METRICS.items() if k != "policy_grad_norm"} | {"kl_k3": math.inf})
    assert line.split()[-6:-4] == ["inf", "-"]
