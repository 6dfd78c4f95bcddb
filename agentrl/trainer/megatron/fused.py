"""Layers of Transformer Engine in the place of plain torch, where it is installed and asked for."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from agentrl.errors import NotReadyError
from agentrl.trainer.megatron.attention import Packing


def fused_layer(config: TransformerConfig) -> tuple[ModuleSpec, Any]:
    """(layer, final norm). `NotReadyError` where Transformer Engine is not installed."""
    try:
        import transformer_engine.pytorch  # noqa: F401
        from megatron.core.extensions.transformer_engine import TEDotProductAttention, TENorm
    except ImportError as error:
        raise NotReadyError(
            f"trainer.layout.kernels=transformer_engine: Transformer Engine can't be imported: {error}"
        ) from error
    layer = get_gpt_layer_with_transformer_engine_spec(num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm)
    layer.submodules.self_attention.submodules.core_attention = packed_attention(TEDotProductAttention)
    return layer, TENorm


def packed_attention(base: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """``base``, which is `TEDotProductAttention`, for one line of rows that lie end to end.

    Megatron would hand such a line on as "thd" from the projection on, and with it to a rotary embedding that counts places
    itself; here only the attention hears of it. With context-parallel ranks ``lengths`` are those of whole rows, padded, of
    which each rank has its two chunks.
    """

    class PackedAttention(base):  # type: ignore[misc, valid-type]
        def forward(
            self,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None,
            attn_mask_type: AttnMaskType = AttnMaskType.causal,
            attention_bias: Tensor | None = None,
            packed_seq_params: Packing | None = None,
        ) -> Tensor:
            """query [s, b, heads, d], key and value [s, b, groups, d] -> [s, b, heads * d]; with `Packing` b is 1."""
            if packed_seq_params is None:
                out: Tensor = super().forward(query, key, value, attention_mask, attn_mask_type, attention_bias)
                return out
            rows = _thd(packed_seq_params.lengths, query.device)
            out = super().forward(*(x.squeeze(1) for x in (query, key, value)), None, attn_mask_type, None, rows)
            return out.reshape(len(out), 1, -1)

    return PackedAttention


def _thd(lengths: tuple[int, ...], device: torch.device) -> PackedSeqParams:
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        cu_seqlens_q_padded=ends,
        cu_seqlens_kv_padded=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
