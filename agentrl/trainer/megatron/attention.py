"""Core attention of the megatron-core layer in plain torch: causal, grouped queries, right-padded rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchCoreAttention(torch.nn.Module):
    """Drop-in for megatron-core's DotProductAttention, which needs CUDA-only parts.

    Causal masking alone makes right padding harmless: a position never sees what follows it. Packed sequences and explicit
    masks are refused, not ignored.
    """

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **unused: Any) -> None:
        super().__init__()
        self.scale: float | None = unused.get("softmax_scale")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """query [s, b, heads, d], key and value [s, b, groups, d] -> [s, b, heads * d]."""
        if attention_mask is not None or attention_bias is not None or packed_seq_params is not None:
            raise ValueError("TorchCoreAttention is causal over right-padded rows: no mask, bias or packed sequences")
        grouped = query.shape[2] != key.shape[2]
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale, enable_gqa=grouped)
        return out.permute(2, 0, 1, 3).flatten(2)
