"""The two parts put into megatron-core's layer: core attention and norm."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from agentrl.trainer.megatron.attention import Packing, TorchCoreAttention
from agentrl.trainer.megatron.norm import RMSNorm


def attention() -> TorchCoreAttention:
    return TorchCoreAttention(SimpleNamespace(), 1, None, "self")


def test_grouped_attention__equals_attention_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(7, 2, 4, 8, generator=generator)
    key, value = (torch.randn(7, 2, 2, 8, generator=generator) for _ in range(2))
    out = attention()(query, key, value, None)
    k, v = (x.repeat_interleave(2, dim=2) for x in (key, value))
    scores = torch.einsum("sbhd,tbhd->bhst", query, k) / 8**0.5
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1), v).flatten(2)
    assert torch.allclose(out, expected, atol=1e-5)


def test_right_padding__changes_no_earlier_position() -> None:
    short = torch.randn(5, 1, 2, 8, generator=torch.Generator().manual_seed(1))
    padded = torch.cat([short, torch.full((3, 1, 2, 8), 9.0)])
    whole = attention()(padded, padded, padded, None)[:5]
    assert torch.allclose(whole, attention()(short, short, short, None), atol=1e-5)


def test_packed_rows__each_as_if_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(n, 1, 2, 8, generator=generator) for n in (5, 1, 9)]
    line = torch.cat(rows)
    packed = attention()(line, line, line, None, packed_seq_params=Packing(lengths=(5, 1, 9)))
    alone = torch.cat([attention()(row, row, row, None) for row in rows])
    assert torch.allclose(packed, alone, atol=1e-5)


def test_mask_or_bias__refused() -> None:
    x = torch.zeros(2, 1, 1, 4)
    with pytest.raises(ValueError, match="causal"):
        attention()(x, x, x, None, attention_bias=torch.zeros(1))
    with pytest.raises(ValueError, match="causal"):
        attention()(x, x, x, torch.zeros(1, 1, 2, 2, dtype=torch.bool))


@pytest.mark.parametrize("parallel", [True, False])
def test_norm__weight_is_tagged_for_sequence_parallel_reduction(parallel: bool) -> None:
    norm = RMSNorm(SimpleNamespace(sequence_parallel=parallel), 4, eps=1e-6)
    assert norm.weight.sequence_parallel is parallel
    assert norm.eps == 1e-6
