"""Two real gloo processes give what one gives: losses, gradient norms, outputs, weights, and the decision to stop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from two_processes import train

PROGRAM = Path(__file__).parent / "two_processes.py"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks got, with the plain and the distributed optimizer."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen([sys.executable, PROGRAM, folder], env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode(errors="replace")[-2000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def difference(one: Any, other: Any) -> float:
    """Largest difference between the numbers of two nested results of the same shape."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list):
        assert len(one) == len(other)
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    return abs(one - other)


@pytest.mark.parametrize("optimizer", ["plain", "distributed"])
def test_every_rank_joins__two_processes_equal_one(two_ranks: list[dict[str, Any]], optimizer: str) -> None:
    first, second = (rank[optimizer] for rank in two_ranks)
    single: dict[str, Any] = train(distributed=optimizer == "distributed")
    assert difference(first, second) == 0
    assert first["stopped"]
    assert first["both_empty"]["skipped"]
    for name in ("uneven", "one_rank_empty"):
        assert difference(first[name]["loss"], single[name]["loss"]) < 1e-4
        assert difference(first[name]["outputs"], single[name]["outputs"]) < 5e-4
        assert first[name]["grad_norm"] == pytest.approx(single[name]["grad_norm"], rel=1e-4)
    assert difference(first["weights"], single["weights"]) < 5e-4
