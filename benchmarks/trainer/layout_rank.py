"""One rank of `benchmarks.trainer.layouts`: trains the same small models in each layout it is given and writes what it got.

As a program it runs under torchrun's environment: ``python -m benchmarks.trainer.layout_rank FOLDER CASES.json``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.config.layout import LayoutSettings
from agentrl.model.config import ARCHITECTURES, ModelConfig
from agentrl.trainer.gradients import GradientMemory
from agentrl.trainer.megatron.mapping import export_gradients
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import NonFiniteStep, OptimizerSettings, Step, TrainedModel

VOCABULARY = 101
"""Divides by no number of ranks: rows that pad the vocabulary must change nothing."""
STEPS = 3
LEARNING_RATE = 1e-3
MAX_TOKENS = 64
BATCHES: Mapping[str, list[int]] = {
    "uneven": [5, 30, 11, 2, 23, 8, 17, 41],
    "one row": [14],
    "no row": [],
    "in parts": [9, 26, 3, 33, 12],
}
PARTS = (1, 4)
"""Rows of "in parts" that are added at a time: with one, a rank of two has none of it."""
Case = Mapping[str, Any]
"""``layout``: settings; ``kind``: architecture; ``tied``; ``role``; optionally ``checkpoint``: a folder to write one into."""


def config(kind: str, *, tied: bool) -> dict[str, Any]:
    """A four-layer model of the architecture, as the dict of its ``config.json``."""
    mixture = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return {
        "architectures": [next(name for name, known in ARCHITECTURES.items() if known == kind)],
        "model_type": kind,
        **(mixture if kind == "qwen3_moe" else {}),
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
    }


def random_weights(hf: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights large enough that logits, norms and biases are not trivial."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in ModelConfig.from_raw(hf, "the layout model").tensor_shapes().items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = 0.08 * noise if len(shape) > 1 else (0.0 if name.endswith("bias") else 1.0) + 0.1 * noise
    return weights


def rows_of(lengths: list[int], seed: int) -> list[Row]:
    """Random rows whose second half is asked for; every third at temperature 0.7."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number, length in enumerate(lengths):
        positions = torch.arange((length + 1) // 2, length)
        tokens = torch.randint(0, VOCABULARY, (length,), generator=generator)
        scale = torch.randn(len(positions), generator=generator)
        rows.append(Row(tokens, positions, {"scale": scale}, 0.7 if number % 3 == 1 else 1.0))
    return rows


def model_of(case: Case) -> TrainedModel:
    """The case's model in the case's layout; the process group must exist or be a world of one."""
    hf = config(case["kind"], tied=case["tied"])
    return TrainedModel(
        hf,
        case["role"],
        random_weights(hf).items(),
        OptimizerSettings(weight_decay=0.01, clip_grad=0.5),
        layout=LayoutSettings(**case["layout"]),
        freeze_attention=case["role"] == "critic",
        max_tokens=MAX_TOKENS,
    )


def step_on(model: TrainedModel, lengths: list[int], seed: int, parts: tuple[int, ...] = ()) -> Step:
    """One update of a policy towards random advantages, or of a critic towards random targets; rows at once or in parts."""
    rows = rows_of(lengths, seed)

    def loss(outputs: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Tensor:
        if model.role == "critic":
            return ((outputs["value"] - columns["scale"]) ** 2).sum()
        return -(outputs["logprob"] * columns["scale"]).sum() - 0.01 * outputs["entropy"].sum()

    positions = sum(len(row.positions) for row in rows)
    if parts:
        model.begin_step()
        for start, size in zip((0, *parts), parts, strict=False):
            model.add_rows(rows[start : start + size], loss)
        return model.finish_step(denominator=float(positions), learning_rate=LEARNING_RATE)
    return model.step(rows, loss, denominator=float(positions), learning_rate=LEARNING_RATE)


def train(case: Case) -> dict[str, Any]:
    """Losses, norms and cosines of gradients, outputs, first gradients, last weights; whether a NaN stopped the step here."""
    model = model_of(case)
    result: dict[str, Any] = {"loss": [], "grad_norm": [], "outputs": {}, "cosine": []}
    memory = GradientMemory()
    for number in range(STEPS):
        step = step_on(model, BATCHES["uneven"], number)
        result["loss"].append(step.loss)
        result["grad_norm"].append(step.grad_norm)
        result["cosine"].append(memory.compare(model).get("gradient_cosine", 0.0))
        if number == 0:
            # The distributed optimizer leaves whole gradients nowhere.
            result["gradients"] = {} if model.layout.distributed_optimizer else _gradients(model)
            result["outputs"] = {name: torch.cat([row[name] for row in step.outputs]) for name in step.outputs[0]}
    for name in ("one row", "no row"):
        step = step_on(model, BATCHES[name], STEPS)
        result[name] = {"loss": step.loss, "grad_norm": step.grad_norm, "skipped": step.skipped}
    step = step_on(model, BATCHES["in parts"], STEPS, PARTS)
    result["in parts"] = {"loss": step.loss, "grad_norm": step.grad_norm, "skipped": step.skipped}
    result["weights"] = dict(model.export())
    if folder := case.get("checkpoint"):
        writing = model.start_writing(Path(folder))
        result["after checkpoint"] = step_on(model, BATCHES["uneven"], STEPS).loss
        writing.finish()
    rows = rows_of([6, 7], 0)
    rows[0].columns["scale"][0] = float("nan")
    before = dict(model.export())
    try:
        name = model._names[0]
        model.step(rows, lambda o, c: (o[name] * c["scale"]).sum(), denominator=1.0, learning_rate=LEARNING_RATE)
        result["stopped"] = False
    except NonFiniteStep:
        result["stopped"] = all(torch.equal(tensor, before[name]) for name, tensor in model.export())
    return result


def _gradients(model: TrainedModel) -> Mapping[str, Tensor]:
    return export_gradients(model.module, vocabulary=VOCABULARY)


def main(folder: Path, cases: list[Case]) -> None:
    """Run all cases after each other in this world; results of rank r in ``rank{r}.pt``."""
    torch.set_num_threads(1)
    results = []
    for case in cases:
        results.append(train(case))
        parallel_state.destroy_model_parallel()
    torch.save(results, folder / f"rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
