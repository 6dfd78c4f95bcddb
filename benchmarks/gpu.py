"""One prepared script for a machine with a GPU: ``python -m benchmarks.gpu [--toy]``, under five minutes.

It needs torch, transformers and megatron-core's wheel. Measured are parity of losses and gradients with the CPU, train tokens a
second in bf16 at the shapes of a 135M and a 1.7B model (random weights), seconds of exporting and of publishing their weights,
peak memory at 32k tokens with and without log-probs in chunks, and GAE on this device and on the CPU. ``--toy`` runs all of it
at small sizes, on a CPU too; that is how it is tested.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.algorithm.advantages import skip_observation_gae
from agentrl.config.layout import LayoutSettings
from agentrl.trainer.megatron.cpu import training_device
from agentrl.trainer.megatron.mapping import export_gradients
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.weights.files import export_weights, verify
from benchmarks.report import Row as Line
from benchmarks.report import table
from benchmarks.trainer import gae
from benchmarks.trainer.layout_rank import config, random_weights, rows_of

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
}  # fmt: skip
ROW_TOKENS, ROWS, STEPS = 2_048, 16, 4
LONG_TOKENS = 32_768
PARITY = 1e-3
"""Largest relative difference of losses and gradients in fp32: kernels of another kind sum in another order."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--toy", action="store_true", help="small sizes; also without a GPU")
    toy = parser.parse_args(arguments).toy
    if not torch.cuda.is_available() and not toy:
        parser.error("there is no GPU here; --toy runs everything at small sizes on the CPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    device = training_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"Device: {name}, torch {torch.__version__}\n", flush=True)
    lines = [_parity()]
    for shape in ("135M",) if toy else SHAPES:
        lines += _throughput(shape, toy)
    lines += _long(toy)
    lines += [line for shape in (gae.QUICK_SHAPES if toy else gae.SHAPES) for line in _gae(*shape)]
    print(table(lines))
    return 0 if all(line.met is not False for line in lines) else 1


def _parity() -> Line:
    """fp32 loss and gradients of the trainer on this device against transformers on the CPU."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    hf = config("qwen3", tied=False)
    weights = random_weights(hf)
    model = TrainedModel(hf, "policy", weights.items(), OptimizerSettings(clip_grad=1e9))
    rows = rows_of([5, 30, 11, 23], 0)
    step = model.step(rows, lambda o, c: (o["logprob"] * c["scale"]).sum(), denominator=7.0, learning_rate=0.0)
    reference = AutoModelForCausalLM.from_config(Qwen3Config(**hf), attn_implementation="eager").float()
    reference.load_state_dict(weights)
    loss = torch.zeros(())
    for row in rows:
        logits = reference(row.tokens[None]).logits[0, row.positions - 1] / row.temperature
        logprob = logits.log_softmax(-1).gather(-1, row.tokens[row.positions, None])[:, 0]
        loss = loss + (logprob * row.columns["scale"]).sum() / 7.0
    loss.backward()
    ours = export_gradients(model.module, vocabulary=hf["vocab_size"])
    largest = max(float(p.grad.abs().max()) for p in reference.parameters())
    gap = max(float((ours[n].cpu() - p.grad).abs().max()) for n, p in reference.named_parameters()) / largest
    worst = max(gap, abs(step.loss - loss.item()) / abs(loss.item()))
    return Line("loss and gradients, fp32", f"{step.loss:.6f}", f"transformers on the CPU: {loss.item():.6f}", worst,
                f"difference <= {PARITY:g}", worst <= PARITY)  # fmt: skip


def _model(shape: str, toy: bool, tokens: int) -> TrainedModel:
    hf = {**config("qwen3", tied=True), **SHAPES[shape], "max_position_embeddings": tokens}
    if toy:
        hf |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 512,
               "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    layout = LayoutSettings(precision="bf16", recompute=not toy)
    return TrainedModel(hf, "policy", random_weights(hf).items(), OptimizerSettings(), layout=layout, max_tokens=tokens)


def _step(model: TrainedModel, lengths: Sequence[int]) -> float:
    """Seconds of one update."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.hf["vocab_size"]
    rows = [Row(torch.randint(0, vocabulary, (n,), generator=generator), torch.arange(1, n)) for n in lengths]
    began = time.perf_counter()
    model.step(rows, lambda o, c: -o["logprob"].sum(), denominator=float(sum(lengths)), learning_rate=1e-6)
    return time.perf_counter() - began  # the loss came back to the CPU, so the device is done


def _throughput(shape: str, toy: bool) -> list[Line]:
    tokens = 64 if toy else ROW_TOKENS
    model = _model(shape, toy, 4 * tokens)
    lengths = [tokens] * (4 if toy else ROWS)
    _step(model, lengths[:1])
    seconds = min(_step(model, lengths) for _ in range(1 if toy else STEPS))
    began = time.perf_counter()
    named = [(name, tensor.cpu()) for name, tensor in model.export()]
    exported = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        file = export_weights(named, Path(folder) / "v0")
        verify(file.uri, file.checksum)
    published = time.perf_counter() - began
    return [
        Line(f"train step, {shape}, bf16, rows of {tokens}", f"{sum(lengths) / seconds:,.0f} tokens/s"),
        Line(f"export of {shape} to the CPU's memory", f"{exported:.2f} s"),
        Line(
            f"publication of {shape}, {file.n_bytes / 1e9:.2f} GB: export, file on disk, checksum, check", f"{published:.2f} s"
        ),
    ]


def _long(toy: bool) -> list[Line]:
    """Peak memory of one long row. On a CPU torch counts no peak, and only that it runs is shown."""
    tokens = 256 if toy else LONG_TOKENS
    model = _model("135M", toy, tokens)
    head = model.module.output_layer
    lines = []
    for name, chunk in (("in chunks", head.chunk_logits if not toy else 2**14), ("from whole logits", 2**62)):
        head.chunk_logits = chunk
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        seconds = _step(model, [tokens])
        peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, " if torch.cuda.is_available() else ""
        lines.append(Line(f"one row of {tokens} tokens, log-probs {name}", f"{peak}{seconds:.1f} s"))
    return lines


def _gae(trajectories: int, tokens: int) -> list[Line]:
    """Wall time, and that both devices agree."""
    given = gae.batch(trajectories, tokens)
    found, times = {}, {}
    for device in dict.fromkeys(("cpu", training_device().type)):
        rewards, values, actions, lam = (tensor.to(device) for tensor in given)
        finals = torch.zeros(trajectories, device=device)
        for _ in range(2):  # the first call loads kernels
            began = time.perf_counter()
            advantages = skip_observation_gae(rewards, values, actions, final_values=finals, gamma=1.0, lam=lam)
            found[device], times[device] = advantages.cpu(), time.perf_counter() - began
    lines = []
    for device, seconds in times.items():
        apart = float((found[device] - found["cpu"]).abs().max())
        name = f"GAE on {device}, {trajectories} x {tokens:,} tokens"
        lines.append(
            Line(name, f"{seconds * 1e3:.1f} ms", "difference from the CPU", apart, f"<= {gae.EQUAL:g}", apart <= gae.EQUAL)
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
