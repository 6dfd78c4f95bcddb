"""Core attention of the megatron-core layer in plain torch: causal, grouped queries; packed rows, or rows shared over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right


@dataclass
class Packing(PackedSeqParams):
    """Lengths of rows that lie end to end in one line. Not megatron's "thd", whose rotary embedding loops over the rows."""

    qkv_format: str = "sbhd"
    lengths: tuple[int, ...] = ()


class TorchCoreAttention(torch.nn.Module):
    """Drop-in for megatron-core's DotProductAttention, which needs CUDA-only parts.

    A line is one row, or with `Packing` several, none of which sees another. Causal masking makes right padding harmless: a
    position never sees what follows it. With context-parallel ranks, each gathers all keys and values and answers for its two
    chunks of queries (see `Shard.places`). Explicit masks are refused, not ignored.
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
        packed_seq_params: Packing | None = None,
    ) -> Tensor:
        """query [s, b, heads, d], key and value [s, b, groups, d] -> [s, b, heads * d]."""
        if attention_mask is not None or attention_bias is not None:
            raise ValueError("TorchCoreAttention is causal: it takes neither a mask nor a bias")
        shared = parallel_state.get_context_parallel_world_size() if parallel_state.is_initialized() else 1
        if packed_seq_params is not None:
            if shared > 1:
                raise ValueError("packed rows can't be shared between context-parallel ranks: pad them")
            lengths = list(packed_seq_params.lengths)
            pieces = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
            return torch.cat([self._attend(q, k, v, is_causal=True) for q, k, v in pieces])
        if shared > 1:
            return self._shared(query, key, value, shared)
        return self._attend(query, key, value, is_causal=True)

    def _shared(self, query: Tensor, key: Tensor, value: Tensor, ranks: int) -> Tensor:
        group = parallel_state.get_context_parallel_group()
        rank, chunk = parallel_state.get_context_parallel_rank(), query.shape[0] // 2
        # Gathered as rank 0's chunks (0, 2n-1), rank 1's (1, 2n-2), ...: back into the order of the row.
        held = [c for r in range(ranks) for c in (r, 2 * ranks - 1 - r)]
        order = [held.index(c) for c in range(2 * ranks)]
        key, value = (
            torch.cat([gathered.chunk(2 * ranks)[i] for i in order])
            for gathered in (gather_from_sequence_parallel_region(x.contiguous(), group=group) for x in (key, value))
        )
        out = []
        for queries, number in zip(query.chunk(2), (rank, 2 * ranks - 1 - rank), strict=True):
            seen = (number + 1) * chunk
            out.append(self._attend(queries, key[:seen], value[:seen], attn_mask=causal_lower_right(chunk, seen)))
        return torch.cat(out)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **masking: Any) -> Tensor:
        grouped = query.shape[2] != key.shape[2]
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = F.scaled_dot_product_attention(query, key, value, scale=self.scale, enable_gqa=grouped, **masking)
        return out.permute(2, 0, 1, 3).flatten(2)
