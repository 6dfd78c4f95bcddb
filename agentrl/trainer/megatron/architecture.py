"""From a Hugging Face config to megatron-core's: which architectures are supported, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig

from agentrl.config.layout import LayoutSettings, ModelSizes
from agentrl.errors import UsageError
from agentrl.model.config import RMS_EPS, ROPE_THETA, experts_of

SUPPORTED = ("llama", "qwen2", "qwen3", "qwen3_moe")


def rotary_base(hf: Mapping[str, Any]) -> float:
    """The RoPE base. Scaled RoPE variants are refused: megatron-core would silently train another model."""
    rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UsageError(f"model config: rope type {kind!r} is not supported by the trainer, only 'default'")
    return float(rope.get("rope_theta") or hf.get("rope_theta") or ROPE_THETA)


def is_tied(hf: Mapping[str, Any]) -> bool:
    """Whether the output layer shares the embedding's weight."""
    return bool(hf.get("tie_word_embeddings", False))


def head_dim(hf: Mapping[str, Any]) -> int:
    """Width of one attention head."""
    return int(hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"])


def sizes(hf: Mapping[str, Any]) -> ModelSizes:
    """What a layout must divide."""
    heads, experts = hf["num_attention_heads"], experts_of(hf)
    width = hf["intermediate_size"] if experts is None else experts.width
    return ModelSizes(hf["num_hidden_layers"], heads, hf.get("num_key_value_heads") or heads, width, experts is not None)


def transformer_config(hf: Mapping[str, Any], layout: LayoutSettings, *, on_gpu: bool) -> TransformerConfig:
    """megatron-core's config of a Llama, Qwen2, Qwen3 or Qwen3-MoE given as the dict of its ``config.json``.

    Raises `UsageError` naming the field when the architecture has a part that the mapping does not carry, and both numbers when
    the layout does not divide the model.
    """
    _refuse_unsupported(hf)
    misfits = layout.misfits(sizes(hf))
    if misfits:
        raise UsageError("; ".join(misfits))
    dtype = torch.bfloat16 if layout.precision == "bf16" else torch.float32
    config = TransformerConfig(
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
        layernorm_epsilon=hf.get("rms_norm_eps", RMS_EPS),
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=hf["model_type"] == "qwen2",
        qk_layernorm=hf["model_type"] in ("qwen3", "qwen3_moe"),
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
        **_experts(hf),
    )
    # Experts are not spread over ranks, so lengths are no matter to how tokens reach them; the other dispatcher needs CUDA.
    config.moe_token_dispatcher_type = "allgather"
    return config


def _experts(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The mixture of experts. Nothing balances the router's load: such a loss would not be the algorithm's."""
    experts = experts_of(hf)
    if experts is None:
        return {}
    return {
        "num_moe_experts": experts.count,
        "moe_ffn_hidden_size": experts.width,
        "moe_router_topk": experts.active,
        # Softmax over the chosen ones is softmax over all, renormalised.
        "moe_router_pre_softmax": not experts.renormalised,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
    }


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
