"""From a Hugging Face config to megatron-core's: which architectures are supported, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig

from agentrl.config.layout import LayoutSettings, ModelSizes
from agentrl.errors import UsageError

SUPPORTED = ("llama", "qwen2", "qwen3")


def rotary_base(hf: Mapping[str, Any]) -> float:
    """The RoPE base. Scaled RoPE variants are refused: megatron-core would silently train another model."""
    rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UsageError(f"model config: rope type {kind!r} is not supported by the trainer, only 'default'")
    base = rope.get("rope_theta", hf.get("rope_theta"))
    if base is None:
        raise UsageError("model config: no rope_theta (neither in rope_parameters nor at the top level)")
    return float(base)


def is_tied(hf: Mapping[str, Any]) -> bool:
    """Whether the output layer shares the embedding's weight."""
    return bool(hf.get("tie_word_embeddings", False))


def head_dim(hf: Mapping[str, Any]) -> int:
    """Width of one attention head."""
    return int(hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"])


def sizes(hf: Mapping[str, Any]) -> ModelSizes:
    """What a layout must divide."""
    heads = hf["num_attention_heads"]
    return ModelSizes(hf["num_hidden_layers"], heads, hf.get("num_key_value_heads") or heads, hf["intermediate_size"])


def transformer_config(hf: Mapping[str, Any], layout: LayoutSettings, *, on_gpu: bool) -> TransformerConfig:
    """megatron-core's config of a dense Llama, Qwen2 or Qwen3 given as the dict of its ``config.json``.

    Raises `UsageError` naming the field when the architecture has a part that the mapping does not carry, and both numbers when
    the layout does not divide the model.
    """
    _refuse_unsupported(hf)
    misfits = layout.misfits(sizes(hf))
    if misfits:
        raise UsageError("; ".join(misfits))
    dtype = torch.bfloat16 if layout.precision == "bf16" else torch.float32
    return TransformerConfig(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        sequence_parallel=layout.sequence_parallel,
        bf16=layout.precision == "bf16",
        params_dtype=dtype,
        pipeline_dtype=dtype,
        # Micro-batches have lengths of their own, which pipeline stages tell each other; megatron ties that to this dispatcher.
        variable_seq_lengths=layout.pipeline > 1,
        moe_token_dispatcher_type="alltoall" if layout.pipeline > 1 else "allgather",
        batch_p2p_sync=on_gpu,
        recompute_granularity="full" if layout.recompute else None,
        recompute_method="uniform" if layout.recompute else None,
        recompute_num_layers=1 if layout.recompute else None,
        num_layers=hf["num_hidden_layers"],
        hidden_size=hf["hidden_size"],
        ffn_hidden_size=hf["intermediate_size"],
        num_attention_heads=hf["num_attention_heads"],
        num_query_groups=hf.get("num_key_value_heads") or hf["num_attention_heads"],
        kv_channels=head_dim(hf),
        layernorm_epsilon=hf["rms_norm_eps"],
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=hf["model_type"] == "qwen2",
        qk_layernorm=hf["model_type"] == "qwen3",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=not on_gpu,
        perform_initialization=False,
        # The fusions are torch.compile or CUDA kernels.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        # The caller divides by a global denominator; gradients are then summed over ranks, never averaged.
        calculate_per_token_loss=True,
    )


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    kind = hf.get("model_type")
    if kind not in SUPPORTED:
        raise UsageError(
            f"model config: model_type {kind!r} is not supported by the trainer; supported: {', '.join(SUPPORTED)}"
        )
    for name, neutral in (
        ("attention_bias", False),
        ("mlp_bias", False),
        ("use_sliding_window", False),
        ("hidden_act", "silu"),
    ):
        if hf.get(name, neutral) != neutral:
            raise UsageError(f"model config: {name}={hf[name]!r} is not supported by the trainer")
    if hf.get("attention_dropout"):
        raise UsageError("model config: attention_dropout must be 0: log-probs of sampler and trainer would differ")
