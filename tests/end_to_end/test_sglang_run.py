"""A run on a real SGLang server of its own: weights change in mid-turn, and what was stored is what the weights say."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
import torch

from agentrl.engine.transformer import Decoder
from agentrl.model.config import ModelConfig
from agentrl.model.weight_files import model_tensors
from agentrl.weights.broadcast import free_port
from tests.command_line import CommandLine
from tests.sglang_server import SGLang

SMALL = ("trainer.steps=4", "trainer.batch=16", "rollout.concurrency=32", "algorithm.critic.warmup_batches=1",
         "evaluation.episodes=8", "evaluation.every=0")  # fmt: skip
TOLERANCE = 1e-4
SLOW_S = 0.03
"""What each forward of the server takes longer, so that updates fall into turns."""


def slow_down(url: str, deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            if httpx2.get(f"{url}/ready", timeout=5).status_code == 200:
                httpx2.post(f"{url}/slow_down", json={"forward_sleep_time": SLOW_S}, timeout=30)
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.2)


def rows(command_line: CommandLine, query: str) -> list[dict[str, Any]]:
    printed = command_line.run("db", "sql", query, "--json", "--limit", "100000")
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def run(command_line: CommandLine, learned: str, sglang: SGLang) -> str:
    """Output of a short run named 'sglang'."""
    port = free_port("127.0.0.1")
    Thread(target=slow_down, args=(f"http://127.0.0.1:{port}", time.monotonic() + 500), daemon=True).start()
    model = command_line.base / "runs" / "learned" / "model"
    return command_line.run(
        "train", "--env", "code_agent", "--engine", "sglang", "--model", str(model), "--name", "sglang",
        f"engine.port={port}", f"engine.sglang_python={sglang.python}", *SMALL,
    )  # fmt: skip


def test_sglang_run__conserves_and_passes_the_gate(run: str) -> None:
    assert "gate passed" in run
    assert "conservation OK" in run
    assert "Run sglang finished after 4 steps" in run


def test_sglang_run__each_load_of_its_server_is_a_row(command_line: CommandLine, run: str) -> None:
    loads = rows(
        command_line,
        "select engine, version, transport, outcome, loader, bytes from agentrl.engine_version"
        " where run = agentrl.find_run_v1('sglang') and not pinned order by id",
    )
    (port,) = re.findall(r"SGLang at http://127\.0\.0\.1:(\d+)", run)
    assert {(load["engine"], load["transport"]) for load in loads} == {(f"http://127.0.0.1:{port}", "disk")}
    assert all("rollout-0" in load["loader"] for load in loads)
    held = [load["version"] for load in loads if load["outcome"] == "loaded"]
    assert held == sorted(held)
    assert len(set(held)) > 1
    assert all(load["bytes"] > 0 for load in loads if load["outcome"] == "loaded")


def test_sglang_run__leaves_no_server(run: str) -> None:
    (port,) = re.findall(r"SGLang at http://127\.0\.0\.1:(\d+)", run)
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if f"--port {port}" in command]


def test_update_in_flight__turns_of_two_versions_rescored_with_both(command_line: CommandLine, run: str) -> None:
    config = ModelConfig.read(command_line.base / "runs" / "learned" / "model")
    versions = rows(command_line, "select version, uri from agentrl.policy_version where run = agentrl.find_run_v1('sglang')")
    decoders = {
        row["version"]: Decoder(config, dict(model_tensors((Path(row["uri"]),), config)), config.max_positions)
        for row in versions
    }
    segments = rows(
        command_line,
        "select trajectory, context, n_obs, versions, agentrl.i4(ids) as ids, agentrl.f4(logprobs) as logprobs, "
        "agentrl.i4(token_versions) as token_versions from agentrl.segment "
        "where run = agentrl.find_run_v1('sglang') order by trajectory, seg",
    )
    contexts: dict[tuple[str, int], list[int]] = defaultdict(list)
    mixed = 0
    for segment in segments:
        ids = contexts[segment["trajectory"], segment["context"]]
        first = len(ids) + segment["n_obs"]
        ids += segment["ids"]
        if len(segment["versions"]) > 1:
            mixed += 1
            assert largest_gap(segment, ids, first, decoders) < TOLERANCE
    assert mixed


def largest_gap(segment: dict[str, Any], ids: list[int], first: int, decoders: dict[int, Decoder]) -> float:
    scores = {v: torch.log_softmax(decoders[v].sequence_logits(np.array(ids)), -1) for v in segment["versions"]}
    gaps = [
        abs(float(scores[version][place - 1, ids[place]]) - stored)
        for place, (version, stored) in enumerate(zip(segment["token_versions"], segment["logprobs"], strict=True), first)
    ]
    return max(gaps)
