"""The ranks of a trainer: their environment, whose exit code counts, and that none is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from agentrl.launch import ranks
from agentrl.launch.ranks import run_ranks

PROGRAM = (
    "import os, sys, time; rank = int(os.environ['RANK']); open(sys.argv[1] + '/' + str(rank), 'w').write(str(os.getpid())); "
)


def command(folder: Path, body: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM + body, str(folder)]


def test_ranks__know_each_other_and_end_well(tmp_path: Path) -> None:
    check = "sys.exit(0 if os.environ['WORLD_SIZE'] == '2' and os.environ['MASTER_PORT'] else 9)"
    assert run_ranks(command(tmp_path, check), 2) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_first_speaks__its_code_is_the_trainers(tmp_path: Path) -> None:
    assert run_ranks(command(tmp_path, "sys.exit(4 if rank == 0 else 0)"), 2) == 4


def test_all_or_none__a_dead_rank_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE_S", 0.5)
    assert run_ranks(command(tmp_path, "sys.exit(7) if rank == 1 else time.sleep(60)"), 2) == 7
    left = int((tmp_path / "0").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{left}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)
