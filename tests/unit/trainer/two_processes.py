"""What one data-parallel rank does in `test_two_processes`; as a program it runs under torchrun's environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from trainer_samples import reference_model, sample_rows, trained

from agentrl.trainer.megatron.model import NonFiniteStep, OptimizerSettings, TrainedModel

BATCHES = {"uneven": [5, 30, 11, 2, 23, 8, 17], "one_rank_empty": [14], "both_empty": []}


def train(*, distributed: bool) -> dict[str, object]:
    """Steps on uneven batches, one with a single row, one without rows, and one with a non-finite loss."""
    model = trained(reference_model("qwen3", tied=False), optimizer=OptimizerSettings(distributed=distributed))
    result: dict[str, object] = {}
    for name, lengths in BATCHES.items():
        result[name] = _step(model, lengths)
    rows = sample_rows([6, 7])
    rows[0].columns["scale"][0] = float("nan")
    try:
        model.step(rows, lambda o, c: (o["logprob"] * c["scale"]).sum(), denominator=1.0, learning_rate=1e-2)
    except NonFiniteStep:
        result["stopped"] = True
    result["weights"] = {name: tensor.tolist() for name, tensor in model.export()}
    return result


def _step(model: TrainedModel, lengths: list[int]) -> dict[str, object]:
    rows = sample_rows(lengths)
    step = model.step(rows, lambda o, c: (o["logprob"] * c["scale"]).sum(), denominator=9.0 * len(rows), learning_rate=1e-2)
    outputs = [o["logprob"].tolist() for o in step.outputs]
    return {"loss": step.loss, "grad_norm": step.grad_norm, "skipped": step.skipped, "outputs": outputs}


if __name__ == "__main__":
    torch.set_num_threads(1)
    both = {name: train(distributed=name == "distributed") for name in ("plain", "distributed")}
    (Path(sys.argv[1]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(both))
    dist.destroy_process_group()
