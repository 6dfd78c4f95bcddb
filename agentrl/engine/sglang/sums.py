"""The sums that a server should report for given weights: its own names, its own layout, its own hash.

SGLang stacks the projections that read the same input, and pads the vocabulary and, without a GPU, the MLP with zeros. Its sum
of a tensor is the start of the sha256 of the bytes, except on GPUs, where a kernel of its own computes it: there, and for
weights that are split over several ranks, sums can't be compared with ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from agentrl.engine.sglang.server import ServerInfo
from agentrl.model.config import ModelConfig

VOCABULARY_STEP = 64
MLP_STEP = 32
DIGITS = 16
DTYPES = ("float32", "bfloat16", "float16")


def comparable(info: ServerInfo) -> bool:
    """Whether sums of this server can equal ours."""
    return info.device == "cpu" and info.tp_size == 1 and info.dtype in DTYPES


def expected_sums(config: ModelConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, str]:
    """By the server's names, for ``tensors`` with exactly the names of ``config.tensor_shapes()``, held as ``dtype``."""
    return {name: _sum(tensor.to(dtype)) for name, tensor in _laid_out(config, tensors).items()}


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Names that are missing, new, or have another sum."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def _laid_out(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    rest = dict(tensors)
    out = {}
    for layer in range(config.n_layers):
        at = f"model.layers.{layer}."
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            parts = [rest.pop(f"{at}self_attn.{x}_proj.{kind}") for x in "qkv"]
            out[f"{at}self_attn.qkv_proj.{kind}"] = torch.cat(parts)
        halves = [_padded(rest.pop(f"{at}mlp.{x}_proj.weight"), MLP_STEP) for x in ("gate", "up")]
        out[f"{at}mlp.gate_up_proj.weight"] = torch.cat(halves)
        down = rest.pop(f"{at}mlp.down_proj.weight")
        out[f"{at}mlp.down_proj.weight"] = _padded(down.t(), MLP_STEP).t()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in rest:
            out[name] = _padded(rest.pop(name), VOCABULARY_STEP)
    return {**out, **rest}


def _padded(rows: torch.Tensor, step: int) -> torch.Tensor:
    return F.pad(rows, (0, 0, 0, -len(rows) % step))


def _sum(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(data.data).hexdigest()[:DIGITS]
