"""Each line of a process log carries the four gauges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.monitor.log import ProcessLog


def lines(log: ProcessLog) -> list[dict]:
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def test_line__carries_gauges_level_and_time(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "logs", "trainer")
    log.info("before")
    log.gauge(step=3, policy_version=5, queue_length=64, hit_rate=1.0)
    log.warning("after", detail="x")
    first, second = lines(log)
    assert (first["step"], first["hit_rate"]) == (None, None)
    assert (second["step"], second["policy_version"], second["queue_length"], second["hit_rate"]) == (3, 5, 64, 1.0)
    assert (second["level"], second["role"], second["detail"]) == ("warning", "trainer", "x")
    assert second["timestamp"].endswith("Z")


def test_non_finite_number__is_valid_json(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path, "trainer")
    log.info("step", loss=float("nan"), kl=float("inf"))
    assert (lines(log)[0]["loss"], lines(log)[0]["kl"]) == ("nan", "inf")


def test_error__records_the_exception(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path, "trainer")
    try:
        raise ValueError("what happened")
    except ValueError:
        log.error("failed")
    assert "what happened" in lines(log)[0]["exception"]


def test_unknown_gauge__is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speed"):
        ProcessLog(tmp_path, "trainer").gauge(speed=1)
