"""The parity table: one process against every split over 2 and 4, the same weights, batches and seeds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.trainer.layout_rank import BATCHES, STEPS, Case, model_of, step_on, train
from benchmarks.trainer.ranks import run_ranks

TOLERANCES: Mapping[str, float] = {
    "loss": 5e-6, "grad_norm": 2e-5, "cosine": 1e-4, "outputs": 1e-5, "gradients": 2e-6, "weights": 1e-4,
}  # fmt: skip
"""Largest absolute difference in fp32. Adam turns differences of gradients near 0 into larger ones of weights."""
BF16_TOLERANCES: Mapping[str, float] = {
    "loss": 2e-2, "grad_norm": 0.1, "cosine": 0.05, "outputs": 0.2, "gradients": 3e-3, "weights": 3e-2,
}  # fmt: skip
"""bf16 keeps 8 bits, and partial sums of other layouts are rounded elsewhere."""


class Comparison(NamedTuple):
    """One layout against one process. ``worst``: quantity -> largest difference on any rank, None where it was not kept."""

    case: Case
    ranks: int
    worst: Mapping[str, float | None]
    agrees: bool
    resumed: tuple[float, float] | None = None
    """The loss of the step after the case's checkpoint: there, and of one process that has read it."""


def case(kind: str = "qwen3", *, tied: bool = False, role: str = "policy", **layout: Any) -> dict[str, Any]:
    return {"kind": kind, "tied": tied, "role": role, "layout": layout}


TWO: Sequence[Case] = (
    case(data=2),
    case(data=2, distributed_optimizer=True),
    case(tensor=2),
    case(tensor=2, sequence_parallel=True),
    case(pipeline=2),
    case(context=2),
    case(context=2, distributed_optimizer=True, recompute=True),
    case("llama", tied=True, tensor=2, sequence_parallel=True, recompute=True),
    case("llama", tied=True, pipeline=2),
    case("qwen2", tied=True, tensor=2),
    case("qwen2", role="critic", tensor=2, sequence_parallel=True),
    case("qwen3", role="critic", pipeline=2),
    case("qwen3_moe", data=2, distributed_optimizer=True),
    case("qwen3_moe", tensor=2, sequence_parallel=True),
    case("qwen3_moe", tied=True, pipeline=2),
    case("qwen3_moe", context=2, recompute=True),
    case("qwen3", role="critic", context=2, distributed_optimizer=True),
    case(data=2, distributed_optimizer=True, precision="bf16"),
    case(tensor=2, sequence_parallel=True, precision="bf16"),
)
FOUR: Sequence[Case] = (
    case(tensor=2, pipeline=2, sequence_parallel=True),
    case(tensor=2, data=2, distributed_optimizer=True),
    case("llama", tied=True, pipeline=2, data=2),
    case("llama", tied=True, pipeline=2, context=2),
    case("qwen2", tensor=2, context=2, sequence_parallel=True, distributed_optimizer=True, recompute=True),
    case(pipeline=4),
    case(data=4, distributed_optimizer=True),
    case("qwen2", tied=True, role="critic", pipeline=2, data=2),
    case(context=2, data=2, precision="bf16"),
)


def compare(cases: Sequence[Case], ranks: int) -> list[Comparison]:
    """Run the cases over ``ranks`` processes and each in this one; all ranks must have the same numbers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cases.json").write_text(json.dumps(cases))
        run_ranks("benchmarks.trainer.layout_rank", [name, str(folder / "cases.json")], ranks)
        found = [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]
    alone: dict[str, dict[str, Any]] = {}
    compared = []
    for number, one in enumerate(cases):
        single = {
            **{k: v for k, v in one.items() if k != "checkpoint"},
            "layout": {"precision": one["layout"].get("precision", "fp32")},
        }
        key = json.dumps(single)
        if key not in alone:
            alone[key] = train(single)
        here = [rank[number] for rank in found]
        resumed = (here[0]["after checkpoint"], _resumed(single, one["checkpoint"])) if "checkpoint" in one else None
        compared.append(_compared(one, ranks, alone[key], here)._replace(resumed=resumed))
    return compared


def _resumed(single: Case, folder: str) -> float:
    model = model_of(single)
    model.read(Path(folder))
    return step_on(model, BATCHES["uneven"], STEPS).loss


def _compared(one: Case, ranks: int, single: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> Comparison:
    tolerances = BF16_TOLERANCES if one["layout"].get("precision") == "bf16" else TOLERANCES
    worst: dict[str, float | None] = {}
    for name in tolerances:
        differences = [difference(single[name], rank[name]) for rank in found if rank[name]]
        worst[name] = max(differences) if differences else None
    for name in ("one row", "no row", "in parts"):
        assert all(rank[name]["skipped"] == single[name]["skipped"] for rank in found), f"{one}: not all ranks skipped alike"
        loss = max(abs(rank[name]["loss"] - single[name]["loss"]) for rank in found)
        # After three updates the weights differ a little already.
        worst["loss"] = max(worst["loss"] or 0.0, loss / 100)
    agrees = all(rank["stopped"] for rank in [single, *found])
    agrees = agrees and all(d is None or d <= tolerances[name] for name, d in worst.items())
    return Comparison(one, ranks, worst, agrees)


def difference(one: Any, other: Any) -> float:
    """Largest absolute difference of two numbers, tensors, or lists or mappings of them."""
    if isinstance(one, Mapping):
        assert one.keys() == other.keys(), f"names differ: {set(one) ^ set(other)}"
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    if isinstance(one, list):
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, Tensor):
        assert one.shape == other.shape, f"shapes differ: {tuple(one.shape)}, {tuple(other.shape)}"
        return float((one.float() - other.float()).abs().max()) if one.numel() else 0.0
    return abs(float(one) - float(other))


def measure(quick: bool) -> bool:
    """Print the table; whether everything agrees. ``quick``: two processes only, the first case of each way to split."""
    two = TWO[:6] if quick else TWO
    compared = compare(two, 2) + ([] if quick else compare(FOUR, 4))
    print("| processes | layout | model | " + " | ".join(f"{name} diff" for name in TOLERANCES) + " | agrees |")
    print("|---" * (4 + len(TOLERANCES)) + "|")
    for c in compared:
        layout = ", ".join(name if value is True else f"{name} {value}" for name, value in c.case["layout"].items())
        model = f"{c.case['kind']} {c.case['role']}, {'tied' if c.case['tied'] else 'untied'}"
        cells = " | ".join("-" if c.worst[name] is None else f"{c.worst[name]:.0e}" for name in TOLERANCES)
        print(f"| {c.ranks} | {layout} | {model} | {cells} | {'yes' if c.agrees else 'NO'} |", flush=True)
    return all(c.agrees for c in compared)
