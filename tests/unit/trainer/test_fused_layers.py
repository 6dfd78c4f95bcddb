"""Transformer Engine is used when asked for, and refused by name where it is not there; what it would be handed is checked."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from trainer_samples import reference_model, trained

from agentrl.config.layout import LayoutSettings
from agentrl.errors import NotReadyError
from agentrl.launch import plan
from agentrl.trainer.megatron.attention import Packing, TorchCoreAttention
from agentrl.trainer.megatron.fused import packed_attention
from agentrl.trainer.megatron.mapping import _in_layer

LAYOUT = LayoutSettings(kernels="transformer_engine")


class RowsEndToEnd(torch.nn.Module):
    """The contract of `TEDotProductAttention` for "thd": [t, heads, d] and where each row starts -> [t, heads * d]."""

    def forward(
        self, query: Any, key: Any, value: Any, mask: Any, kind: Any, bias: Any, rows: PackedSeqParams | None = None
    ) -> Any:
        assert rows is not None
        assert rows.qkv_format == "thd"
        starts = rows.cu_seqlens_q.tolist()
        assert rows.max_seqlen_q == max(b - a for a, b in pairwise(starts))
        out = []
        for a, b in pairwise(starts):
            q, k, v = (x[a:b].transpose(0, 1) for x in (query, key, value))
            out.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1).flatten(1))
        return torch.cat(out)


def test_packed_line__given_as_rows_end_to_end() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(14, 1, heads, 8, generator=generator) for heads in (4, 2, 2))
    packing = Packing(lengths=(9, 5))
    expected = TorchCoreAttention(None, 1, None, "self")(query, key, value, None, packed_seq_params=packing)
    found = packed_attention(RowsEndToEnd)()(query, key, value, None, packed_seq_params=packing)
    assert found.shape == expected.shape == (14, 1, 32)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


def test_fused_norms__have_their_own_names_in_a_checkpoint() -> None:
    assert _in_layer("self_attention.linear_qkv.layer_norm_weight") == ("whole", ("input_layernorm.weight",))
    assert _in_layer("mlp.linear_fc1.layer_norm_weight") == ("whole", ("post_attention_layernorm.weight",))


def test_not_installed__refused_by_name_in_the_plan_and_in_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    monkeypatch.setattr(plan, "_has_gpu", lambda: False)
    with pytest.raises(NotReadyError, match="transformer_engine is not installed; there is no NVIDIA GPU here"):
        plan._check_kernels(LAYOUT)
    monkeypatch.setattr(plan, "find_spec", lambda name: name)
    monkeypatch.setattr(plan, "_has_gpu", lambda: True)
    plan._check_kernels(LAYOUT)
    plan._check_kernels(LayoutSettings())
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(NotReadyError, match="Transformer Engine can't be imported"):
        trained(reference_model(), layout=LAYOUT)
