"""The decoder computes transformers' logits for each architecture, whole and in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agentrl.engine.transformer import Decoder, KVCache, Rows
from agentrl.model.config import ModelConfig
from agentrl.model.weight_files import model_tensors, weight_files

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
EXPERTS: dict[str, Any] = {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
MODELS = {
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama-theta": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_theta": 500.0, "rope_type": "default"})
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=True)),
    "qwen3-moe-unnormalised": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=False)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.15)
    return model


@pytest.fixture
def decoder(model: PreTrainedModel, tmp_path: Path) -> Decoder:
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    config = ModelConfig.read(tmp_path)
    model.save_pretrained(tmp_path)  # in memory transformers stacks the experts of a layer
    tensors = dict(model_tensors(weight_files(tmp_path), config))
    assert {name: tuple(t.shape) for name, t in tensors.items()} == config.tensor_shapes()
    return Decoder(config, tensors, max_context=64)


def reference(model: PreTrainedModel, ids: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0]


def test_whole_sequence__equals_transformers(model: PreTrainedModel, decoder: Decoder) -> None:
    ids = np.random.default_rng(0).integers(0, 101, 50)
    expected = reference(model, ids)
    assert expected.std() > 0.5
    torch.testing.assert_close(decoder.sequence_logits(ids), expected, atol=1e-5, rtol=1e-5)


def test_ragged_pieces_in_scattered_slots__equal_transformers(model: PreTrainedModel, decoder: Decoder) -> None:
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, 101, 40) for _ in range(5)]
    expected = [reference(model, ids) for ids in sequences]
    slots, done = np.array([6, 0, 3, 7, 2]), np.zeros(5, dtype=np.int64)
    cache = KVCache(decoder.config, 8, 64)
    while (done < 40).any():
        counts = np.minimum(rng.choice([0, 1, 1, 2, 5, 9], 5), 40 - done)
        order = np.argsort(counts != 1, kind="stable")
        order = order[counts[order] > 0]
        if not len(order):
            continue
        tokens = np.concatenate([sequences[i][done[i] : done[i] + counts[i]] for i in order])
        logits = decoder.forward(Rows(slots[order], done[order], counts[order], tokens), cache)
        done[order] += counts[order]
        for row, i in enumerate(order):
            torch.testing.assert_close(logits[row], expected[i][done[i] - 1], atol=1e-5, rtol=1e-5)
