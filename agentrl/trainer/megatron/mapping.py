"""Hugging Face names and layouts of dense Llama, Qwen2 and Qwen3 weights, to and from megatron-core parameters.

Loading and exporting are exact: load then export gives the same bits. Tied models have no ``lm_head.weight`` on either side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from agentrl.errors import WeightsCorrupt

VALUE_HEAD_PREFIX = "value_head."
"""Names of a critic's head in an export; a policy's weights have none."""

_PLAIN, _QKV, _GATED = "plain", "qkv", "gated"

_TOP = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_LAYER: dict[str, tuple[str, tuple[str, ...]]] = {
    "input_layernorm.weight": (_PLAIN, ("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": (_QKV, tuple(f"self_attn.{x}_proj.weight" for x in "qkv")),
    "self_attention.linear_qkv.bias": (_QKV, tuple(f"self_attn.{x}_proj.bias" for x in "qkv")),
    "self_attention.q_layernorm.weight": (_PLAIN, ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": (_PLAIN, ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": (_PLAIN, ("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": (_PLAIN, ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": (_GATED, ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    "mlp.linear_fc2.weight": (_PLAIN, ("mlp.down_proj.weight",)),
}


class _Entry(NamedTuple):
    parameter: Tensor
    layout: str
    hf_names: tuple[str, ...]


def _entries(model: GPTModel) -> Iterator[_Entry]:
    for name, parameter in model.named_parameters():
        layer = re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", name)
        if layer:
            number = model.decoder.layers[int(layer[1])].layer_number - 1
            layout, suffixes = _LAYER[layer[2]]
            yield _Entry(parameter, layout, tuple(f"model.layers.{number}.{suffix}" for suffix in suffixes))
        elif name.startswith("output_layer.head."):
            yield _Entry(parameter, _PLAIN, (VALUE_HEAD_PREFIX + name.removeprefix("output_layer.head."),))
        else:
            yield _Entry(parameter, _PLAIN, (_TOP[name],))


def _merge(tensors: Sequence[Tensor], layout: str, config: TransformerConfig) -> Tensor:
    """Hugging Face tensors -> one megatron tensor. q, k and v are interleaved per query group."""
    if layout == _QKV:
        groups = config.num_query_groups
        return torch.cat([t.reshape(groups, -1, *t.shape[1:]) for t in tensors], dim=1).flatten(0, 1)
    return torch.cat(list(tensors)) if layout == _GATED else tensors[0]


def _split(tensor: Tensor, layout: str, config: TransformerConfig) -> Sequence[Tensor]:
    """The inverse of `_merge`."""
    if layout == _QKV:
        width = config.kv_channels
        grouped = tensor.reshape(config.num_query_groups, -1, *tensor.shape[1:])
        return [part.flatten(0, 1) for part in grouped.split([grouped.shape[1] - 2 * width, width, width], dim=1)]
    return tensor.chunk(2) if layout == _GATED else [tensor]


@torch.no_grad()
def load_weights(model: GPTModel, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy Hugging Face weights into the model; nothing is changed unless all names and shapes fit.

    Weights without a value head leave a critic's head as it is. Raises `WeightsCorrupt` naming what is missing, superfluous or
    of another shape.
    """
    given = dict(weights)
    merged: list[tuple[Tensor, Tensor]] = []
    used: set[str] = set()
    for entry in _entries(model):
        missing = [name for name in entry.hf_names if name not in given]
        if missing and all(name.startswith(VALUE_HEAD_PREFIX) for name in missing):
            continue
        if missing:
            raise WeightsCorrupt(f"weights lack {', '.join(missing)}")
        used.update(entry.hf_names)
        for name, own in zip(entry.hf_names, _split(entry.parameter, entry.layout, model.config), strict=True):
            if given[name].shape != own.shape:
                raise WeightsCorrupt(f"{name} has shape {tuple(given[name].shape)}, the config needs {tuple(own.shape)}")
        tensor = _merge([given[name] for name in entry.hf_names], entry.layout, model.config)
        merged.append((entry.parameter, tensor))
    superfluous = set(given) - used - _ignorable(model)
    if superfluous:
        raise WeightsCorrupt(f"weights have names that the model does not: {', '.join(sorted(superfluous)[:5])}")
    for parameter, tensor in merged:
        parameter.copy_(tensor)


def _ignorable(model: GPTModel) -> set[str]:
    # A tied checkpoint may repeat the embedding as lm_head, and a critic has no use for one.
    has_lm_head = any("lm_head.weight" in entry.hf_names for entry in _entries(model))
    return set() if has_lm_head else {"lm_head.weight"}


@torch.no_grad()
def export_weights(model: GPTModel) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, copy of the tensor) for every parameter, in the model's order."""
    for entry in _entries(model):
        parts = _split(entry.parameter.detach(), entry.layout, model.config)
        for name, tensor in zip(entry.hf_names, parts, strict=True):
            yield name, tensor.clone(memory_format=torch.contiguous_format)


def export_gradients(model: GPTModel) -> Mapping[str, Tensor]:
    """Gradients of the last backward under Hugging Face names; for parity tests and diagnosis."""
    found: dict[str, Tensor] = {}
    for entry in _entries(model):
        if not entry.parameter.requires_grad:
            continue
        gradient: Tensor = entry.parameter.main_grad  # type: ignore[attr-defined]
        for name, tensor in zip(entry.hf_names, _split(gradient, entry.layout, model.config), strict=True):
            found[name] = tensor.clone(memory_format=torch.contiguous_format)
    return found
