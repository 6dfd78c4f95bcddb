"""Hugging Face names and layouts of Llama, Qwen2, Qwen3 and Qwen3-MoE weights, to and from megatron-core parameters.

Loading and exporting are exact: load then export gives the same bits, however the parameters are spread over ranks. Tied models
have no ``lm_head.weight`` on either side; rows that only pad the vocabulary are never exported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from agentrl.errors import WeightsCorrupt
from agentrl.model.config import VALUE_HEAD_PREFIX
from agentrl.trainer.megatron.head import ValueHead

EMBEDDING = "model.embed_tokens.weight"

Kind = Literal["whole", "rows", "qkv", "gated", "vocabulary"]
"""How a parameter is cut over tensor-parallel ranks: not at all; along its second axis; along the first, by query groups; each
half along the first; along the first, padded."""

_TOP: Mapping[str, tuple[Kind, str]] = {
    "embedding.word_embeddings.weight": ("vocabulary", EMBEDDING),
    "decoder.final_layernorm.weight": ("whole", "model.norm.weight"),
    "output_layer.weight": ("vocabulary", "lm_head.weight"),
}
_LAYER: Mapping[str, tuple[Kind, tuple[str, ...]]] = {
    "input_layernorm.weight": ("whole", ("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": ("qkv", tuple(f"self_attn.{x}_proj.weight" for x in "qkv")),
    "self_attention.linear_qkv.bias": ("qkv", tuple(f"self_attn.{x}_proj.bias" for x in "qkv")),
    "self_attention.q_layernorm.weight": ("whole", ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": ("whole", ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": ("rows", ("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": ("whole", ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": ("gated", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    "mlp.linear_fc2.weight": ("rows", ("mlp.down_proj.weight",)),
    # Transformer Engine fuses a norm with the matrix behind it.
    "self_attention.linear_qkv.layer_norm_weight": ("whole", ("input_layernorm.weight",)),
    "mlp.linear_fc1.layer_norm_weight": ("whole", ("post_attention_layernorm.weight",)),
    "mlp.router.weight": ("whole", ("mlp.gate.weight",)),
}
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.*)")


class _Entry(NamedTuple):
    parameter: Tensor
    kind: Kind
    hf_names: tuple[str, ...]
    repeated: bool = False
    """The last pipeline stage's copy of a tied embedding."""


def _entries(model: GPTModel) -> Iterator[_Entry]:
    for name, parameter in model.named_parameters():
        layer = re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", name)
        if layer:
            number = model.decoder.layers[int(layer[1])].layer_number - 1
            kind, suffixes = _in_layer(layer[2])
            yield _Entry(parameter, kind, tuple(f"model.layers.{number}.{suffix}" for suffix in suffixes))
        elif name.startswith("output_layer.") and isinstance(model.output_layer, ValueHead):
            yield _Entry(parameter, "whole", (VALUE_HEAD_PREFIX + name.removeprefix("output_layer."),))
        elif name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            yield _Entry(parameter, "vocabulary", (EMBEDDING,), repeated=True)
        else:
            kind, hf_name = _TOP[name]
            yield _Entry(parameter, kind, (hf_name,))


def _in_layer(name: str) -> tuple[Kind, tuple[str, ...]]:
    """Of a parameter by its name in the layer; each expert is an MLP of its own."""
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return _LAYER[name]
    kind, suffixes = _LAYER[f"mlp.{expert[2]}"]
    return kind, tuple(suffix.replace("mlp.", f"mlp.experts.{expert[1]}.", 1) for suffix in suffixes)


def mark_shards(model: GPTModel) -> None:
    """Tell megatron which parameters differ between tensor-parallel ranks; it would count the others' gradients once."""
    for entry in _entries(model):
        if entry.kind != "whole" and not hasattr(entry.parameter, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(entry.parameter, True, 1 if entry.kind == "rows" else 0, 1)


def _merge(tensors: Sequence[Tensor], kind: Kind, config: TransformerConfig) -> Tensor:
    """Hugging Face tensors -> one megatron tensor. q, k and v are interleaved per query group."""
    if kind == "qkv":
        groups = config.num_query_groups
        return torch.cat([t.reshape(groups, -1, *t.shape[1:]) for t in tensors], dim=1).flatten(0, 1)
    return torch.cat(list(tensors)) if kind == "gated" else tensors[0]


def _split(tensor: Tensor, kind: Kind, config: TransformerConfig) -> Sequence[Tensor]:
    """The inverse of `_merge`."""
    if kind == "qkv":
        width = config.kv_channels
        grouped = tensor.reshape(config.num_query_groups, -1, *tensor.shape[1:])
        return [part.flatten(0, 1) for part in grouped.split([grouped.shape[1] - 2 * width, width, width], dim=1)]
    return tensor.chunk(2) if kind == "gated" else [tensor]


def _shard(whole: Tensor, kind: Kind, rank: int, ranks: int) -> Tensor:
    """This rank's part of a whole megatron tensor."""
    if ranks == 1 or kind == "whole":
        return whole
    if kind == "gated":
        return torch.cat([half.chunk(ranks)[rank] for half in whole.chunk(2)])
    return whole.chunk(ranks, 1 if kind == "rows" else 0)[rank]


def _unshard(parts: Sequence[Tensor], kind: Kind) -> Tensor:
    """The inverse of `_shard`."""
    if len(parts) == 1 or kind == "whole":
        return parts[0]
    if kind == "gated":
        return torch.cat([torch.cat(halves) for halves in zip(*(part.chunk(2) for part in parts), strict=True)])
    return torch.cat(list(parts), 1 if kind == "rows" else 0)


@torch.no_grad()
def load_weights(model: GPTModel, weights: Iterable[tuple[str, Tensor]], *, vocabulary: int) -> None:
    """Copy whole Hugging Face weights into this rank's part of the model; nothing is changed unless all names and shapes fit.

    Weights without a value head leave a critic's head as it is. Raises `WeightsCorrupt`, on every rank, naming what is missing,
    superfluous or of another shape.
    """
    given = dict(weights)
    merged: list[tuple[Tensor, Tensor]] = []
    used: set[str] = set()
    problem: str | None = None
    for entry in _entries(model):
        missing = [name for name in entry.hf_names if name not in given]
        if missing and all(name.startswith(VALUE_HEAD_PREFIX) for name in missing):
            continue
        problem = f"weights lack {', '.join(missing)}" if missing else _misshapen(entry, given, model.config, vocabulary)
        if problem:
            break
        used.update(entry.hf_names)
        merged.append((entry.parameter, _local(entry, given, model.config)))
    problems, everywhere = zip(*_from_every_rank((problem, used)), strict=True)
    _refuse_misfits(problems, set(given) - set().union(*everywhere))
    for parameter, tensor in merged:
        parameter.copy_(tensor)


def _refuse_misfits(problems: Iterable[str | None], superfluous: set[str]) -> None:
    if first := next((problem for problem in problems if problem), None):
        raise WeightsCorrupt(first)
    # A tied checkpoint may repeat the embedding as lm_head, and a critic has no use for one.
    superfluous.discard("lm_head.weight")
    if superfluous:
        raise WeightsCorrupt(f"weights have names that the model does not: {', '.join(sorted(superfluous)[:5])}")


def _misshapen(entry: _Entry, given: Mapping[str, Tensor], config: TransformerConfig, vocabulary: int) -> str | None:
    shape = list(entry.parameter.shape)
    if entry.kind == "vocabulary":
        shape[0] = vocabulary
    elif entry.kind != "whole":
        shape[1 if entry.kind == "rows" else 0] *= config.tensor_model_parallel_size
    expected = _split(torch.empty(shape, device="meta"), entry.kind, config)
    for name, own in zip(entry.hf_names, expected, strict=True):
        if given[name].shape != own.shape:
            return f"{name} has shape {tuple(given[name].shape)}, the config needs {tuple(own.shape)}"
    return None


def _local(entry: _Entry, given: Mapping[str, Tensor], config: TransformerConfig) -> Tensor:
    ranks, rank = config.tensor_model_parallel_size, parallel_state.get_tensor_model_parallel_rank()
    whole = _merge([given[name] for name in entry.hf_names], entry.kind, config)
    if entry.kind == "vocabulary":
        padding = entry.parameter.shape[0] * ranks - whole.shape[0]
        whole = torch.nn.functional.pad(whole, (0, 0, 0, padding)) if padding else whole
    return _shard(whole, entry.kind, rank, ranks)


def _from_every_rank(item: Any) -> list[Any]:
    if dist.get_world_size() == 1:
        return [item]
    items: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items


def export_weights(model: GPTModel, *, vocabulary: int) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, copy of the whole tensor) for every parameter, in the model's order, on every rank.

    All ranks must take every item: each is gathered when it is asked for.
    """
    return _export(model, lambda parameter: parameter.detach(), vocabulary)


def export_gradients(model: GPTModel, *, vocabulary: int) -> Mapping[str, Tensor]:
    """Gradients of the last backward under Hugging Face names; for parity tests and diagnosis."""
    return dict(_export(model, lambda parameter: parameter.main_grad, vocabulary, trained_only=True))


@torch.no_grad()
def _export(
    model: GPTModel, value: Callable[[Any], Tensor], vocabulary: int, *, trained_only: bool = False
) -> Iterator[tuple[str, Tensor]]:
    config, device = model.config, next(model.parameters()).device
    own = [e for e in _entries(model) if not e.repeated and (e.parameter.requires_grad or not trained_only)]
    stage = parallel_state.get_pipeline_model_parallel_rank()
    described = [(e.kind, e.hf_names, tuple(e.parameter.shape), value(e.parameter).dtype) for e in own]
    for number, entries in enumerate(_from_every_stage(described)):
        for index, (kind, hf_names, shape, dtype) in enumerate(entries):
            tensor = value(own[index].parameter) if number == stage else torch.empty(shape, dtype=dtype, device=device)
            whole = _gathered(tensor.contiguous(), kind, number, config)
            if kind == "vocabulary":
                whole = whole[:vocabulary]
            for name, part in zip(hf_names, _split(whole, kind, config), strict=True):
                yield name, part.clone(memory_format=torch.contiguous_format)


def _from_every_stage(described: list[Any]) -> list[list[Any]]:
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if stages == 1:
        return [described]
    found: list[list[Any]] = [[] for _ in range(stages)]
    dist.all_gather_object(found, described, group=parallel_state.get_pipeline_model_parallel_group())
    return found


def _gathered(tensor: Tensor, kind: Kind, stage: int, config: TransformerConfig) -> Tensor:
    """The whole tensor, from the stage that holds it and over its tensor-parallel ranks."""
    if config.pipeline_model_parallel_size > 1:
        group = parallel_state.get_pipeline_model_parallel_group()
        dist.broadcast(tensor, dist.get_global_rank(group, stage), group=group)
    if config.tensor_model_parallel_size == 1 or kind == "whole":
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(config.tensor_model_parallel_size)]
    dist.all_gather(parts, tensor, group=parallel_state.get_tensor_model_parallel_group())
    return _unshard(parts, kind)
