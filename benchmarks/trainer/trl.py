"""CPU time of a GRPO step of the default model on given completions, against TRL's GRPOTrainer in an interpreter of its own.

Both take the same rows, advantages and weights, with the ratio to the weights of the step itself; the gradient norms of the
first step must agree, so that the same thing is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.model.weight_files import write_weights
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, Outputs, TrainedModel
from benchmarks.report import Row as Line
from benchmarks.report import Sample, interleaved, table, timed
from benchmarks.trainer.steps import BATCH, MAX_TOKENS, ROUNDS, default_config, rows

INSTALL = "pip install -r benchmarks/trainer/requirements-peers.txt"
CLIP = 0.2
AGREE = 1e-3
"""Largest relative difference of the gradient norms."""


class CannotRun(Exception):
    """TRL is not there, or ends by itself; says why."""


class Peer:
    """TRL's process: a step a call."""

    def __init__(self, python: str, model_dir: Path, rows_file: Path) -> None:
        script = Path(__file__).with_name("trl_child.py")
        self._errors = model_dir / "stderr"
        # -P: else `import trl` there would find this module.
        command = [python, "-P", str(script), str(model_dir), str(rows_file)]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.grad_norm = 0.0
        self._hear()

    def step(self) -> Sample:
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        told = self._hear()
        self.grad_norm = told["grad_norm"]
        return Sample(told["wall"], told["cpu"])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        said = self._errors.read_text().strip().splitlines()
        raise CannotRun(said[-1] if said else "it said nothing")


def measure(quick: bool, peers_python: str = sys.executable) -> bool:
    """Print the row, or why it can't be taken; False when both sides do different things."""
    torch.set_num_threads(1)
    batch = [_graded(row, number) for number, row in enumerate(rows(8 if quick else BATCH))]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ours = TrainedModel(default_config(), "policy", _weights(folder), OptimizerSettings(), max_tokens=MAX_TOKENS)
        (folder / "rows.json").write_text(json.dumps([_plain(row) for row in batch]))
        try:
            peer = Peer(peers_python, folder, folder / "rows.json")
        except (CannotRun, OSError) as error:
            print(table([Line("GRPO step against TRL", "not measured", f"TRL can't run here ({error!s:.200}): {INSTALL}")]))
            return True
        stack.callback(peer.close)
        norms: list[float] = []
        variants: dict[str, Callable[[], Sample]] = {"ours": lambda: timed(lambda: _step(ours, batch, norms)), "trl": peer.step}
        variants["trl"]()
        variants["ours"]()
        first = norms[0], peer.grad_norm
        taken = interleaved(1 if quick else ROUNDS, variants)
    tokens = sum(row.length for row in batch)
    line = Line(
        f"GRPO step, {len(batch)} rows, {tokens} tokens",
        f"{taken['ours'].cpu * 1e3:.0f} ms CPU",
        f"TRL's GRPOTrainer: {taken['trl'].cpu * 1e3:.0f} ms",
        taken["ours"].cpu / taken["trl"].cpu,
    )
    print(table([line]))
    print(f"gradient norms of the first step: {first[0]:.6f} here, {first[1]:.6f} there", flush=True)
    return abs(first[0] / first[1] - 1) < AGREE


def _step(model: TrainedModel, batch: Sequence[Row], norms: list[float]) -> None:
    total = float(sum(len(row.positions) for row in batch))
    norms.append(model.step(batch, _grpo, denominator=total, learning_rate=1e-5).grad_norm)


def _grpo(outputs: Outputs, columns: Mapping[str, Tensor]) -> Tensor:
    ratio = (outputs["logprob"] - outputs["logprob"].detach()).exp()
    advantage = columns["advantage"]
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).sum()


def _graded(row: Row, number: int) -> Row:
    """The row with one advantage on all its tokens."""
    return Row(row.tokens, row.positions, {"advantage": torch.full((len(row.positions),), 1.0 - number % 3)})


def _plain(row: Row) -> dict[str, Any]:
    first = int(row.positions[0])
    end = int(row.positions[-1]) + 1
    ids = row.tokens.tolist()
    return {"prompt": ids[:first], "completion": ids[first:end], "advantage": float(row.columns["advantage"][0])}


def _weights(folder: Path) -> list[tuple[str, Tensor]]:
    """Random weights of the default model, which are also written as a model folder."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    hf = default_config()
    reference = AutoModelForCausalLM.from_config(LlamaConfig(**{k: v for k, v in hf.items() if k != "architectures"})).float()
    weights = [(name, tensor.clone()) for name, tensor in reference.state_dict().items() if name != "lm_head.weight"]
    (folder / "config.json").write_text(json.dumps(hf))
    write_weights(weights, folder)
    return weights
