"""The learning benchmark: its cells are valid runs, it goes on where it stopped, its wrong variants are wrong as they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_samples import segment, stored

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.load import resolve
from agentrl.launch import run as launcher
from agentrl.launch.processes import Child, RunProcesses
from agentrl.trainer import batch as batches
from agentrl.trainer import credit
from agentrl.trainer.credit import Values, assign_credit
from benchmarks.learning import __main__ as learning
from benchmarks.learning import controls, running
from benchmarks.learning.cells import EXPERIMENTS
from benchmarks.learning.outcome import STRETCHES, stretches
from benchmarks.learning.running import CellFailed

OUTCOME: dict[str, Any] = {
    "run": "r", "steps": 2, "trajectories": 32, "held_out_before": 0.25, "held_out_after": None, "wall_s": 10.0,
    "lag_mean": 0.5, "lag_max": 1, "dropped": {"stale": 3}, "curves": {"reward": [0.1, 0.4]}, "cpu_s": 20.0, "peak_mb": 900.0,
}  # fmt: skip
SETTINGS = AlgorithmConfig(gae_lambda=1.0)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells__are_settings_of_a_run(name: str, quick: bool) -> None:
    for cell in EXPERIMENTS[name].cells(1):
        overrides = [*cell.overrides, *learning._size(cell, 8, quick)]
        flags = {"seed": cell.seed, "staleness.lag": 0 if cell.sync else None}
        config = resolve(environment="code_agent", preset=cell.preset, file=None, flags=flags, overrides=overrides).config
        assert config.trainer.steps == 8
        assert config.evaluation.every == 0


def test_benchmark__goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run(cell: Any, size: Any, logs: Path) -> dict[str, Any]:
        ran.append((cell.label, cell.seed))
        if len(ran) == 3:
            raise CellFailed("it broke")
        return OUTCOME

    monkeypatch.setattr(learning, "run_cell", run)
    command = ["credit", "--seeds", "0", "--results", str(tmp_path / "results.jsonl")]
    assert learning.main(command) == 1
    assert learning.main(command) == 0
    assert len(ran) == 5
    assert ran[2] == ran[4]
    assert capsys.readouterr().out.count("measured before") == 3


def test_wrong_input__is_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"arguments": ["a"]}) + "\n{}\n")
    for arguments, why in (
        (["credit", "--results", str(path)], "line 2 is not a result"),
        (["credit", "--only", "per turn", "--results", str(tmp_path / "new")], "per turn, asynchronous; per turn, synchronous"),
        (["speed"], "invalid choice: 'speed'"),
    ):
        with pytest.raises(SystemExit) as ended:
            learning.main(arguments)
        assert ended.value.code == 2
        assert why in capsys.readouterr().err


def test_tables__show_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning, "run_cell", lambda cell, size, logs: {**OUTCOME, "wall_s": 10.0 + cell.seed})
    learning.main(["credit", "--seeds", "0,2", "--results", str(tmp_path / "results.jsonl")])
    printed = capsys.readouterr().out
    assert "| per turn, asynchronous | 2 | 0.250 |  | 0.400 | 32 | 12 | 20 | 900 | 0.50 | 3 | stale 3 |" in printed
    assert "11 [10, 12]" in printed
    assert "| per token, synchronous | reward | 0.100, 0.400 |" in printed


def test_stretches__are_means_of_equal_parts() -> None:
    assert stretches([float(i) for i in range(10)]) == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert stretches([1.0, 3.0]) == [1.0, 3.0]
    assert len(stretches([0.0] * 13)) == STRETCHES


def advantages(trajectories: list[Any], settings: AlgorithmConfig) -> list[torch.Tensor]:
    built = batches.build_batch(trajectories, max_context=1000)
    values = [Values(torch.full((t.n_actions,), 0.25), 0.0) for t in built.trajectories]
    return assign_credit(built, values, settings).advantages


def test_hard_cut__averages_the_verdict_over_pieces_of_equal_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((batches, "unit_ids"), (credit, "with_outcome")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    turns = [stored(0, [segment(0, 4, 3), segment(1, 2, 13)], reward=1.0)]
    (right,) = advantages(turns, SETTINGS)
    controls.hard_cut()
    (wrong,) = advantages(turns, SETTINGS)
    assert right.tolist() == [0.75] * 16
    assert wrong.tolist() == [0.75] * controls.PIECE + [0.25] * controls.PIECE


def test_micro_batch__whitens_parts_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "whiten", credit.whiten)
    settings = AlgorithmConfig(gae_lambda=1.0, normalise="token")
    trajectories = [stored(i, reward=float(i)) for i in range(2 * controls.MICRO_BATCH)]
    right = torch.stack(advantages(trajectories, settings))
    controls.micro_batch()
    wrong = torch.stack(advantages(trajectories, settings))
    assert right.mean().item() == pytest.approx(0, abs=1e-6)
    assert right[: controls.MICRO_BATCH].mean() < -0.5
    assert wrong[: controls.MICRO_BATCH].mean().item() == pytest.approx(0, abs=1e-6)


def test_control__starts_the_trainer_and_nothing_else_through_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[Child] = []
    monkeypatch.setattr(RunProcesses, "_spawn", lambda self, child: spawned.append(child))
    monkeypatch.setattr(launcher, "RunProcesses", RunProcesses)
    controls._start_trainer_under("hard_cut")
    launcher.RunProcesses("r", tmp_path, 1).start()
    command = {child.role: list(child.command[1:]) for child in spawned}
    assert command["trainer"] == ["-m", "benchmarks.learning.controls", "hard_cut", "trainer", "--run", "r"]
    assert command["rollout-0"][:2] == ["-m", "agentrl.cli.main"]
    assert spawned[0].command[0] == sys.executable


def test_watch__sees_memory_below_the_process_and_returns_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SAMPLE_S", 0.1)
    holding = "import os, time; held = bytearray(os.urandom(1 << 20) * 48); time.sleep(1)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holding!r}], check=True)"
    process = subprocess.Popen([sys.executable, "-c", code])
    peak = running._watch(process)
    assert process.returncode == 0
    assert peak > 48 * 2**20
