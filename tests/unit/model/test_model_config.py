"""config.json is read whole or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from agentrl.errors import UsageError
from agentrl.model.config import Experts, ModelConfig, identity

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(
    ("config", "name", "bias", "norm"),
    [
        (LlamaConfig(), "LlamaForCausalLM", False, False),
        (Qwen2Config(), "Qwen2ForCausalLM", True, False),
        (Qwen3Config(), "Qwen3ForCausalLM", False, True),
        (Qwen3MoeConfig(), "Qwen3MoeForCausalLM", False, True),
    ],
)
def test_config_saved_by_transformers__read(tmp_path: Path, config: Any, name: str, bias: bool, norm: bool) -> None:
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    read = ModelConfig.read(tmp_path)
    assert (read.n_heads, read.n_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert read.head_dim == config.head_dim if hasattr(config, "head_dim") else config.hidden_size // config.num_attention_heads
    assert (read.qkv_bias, read.qk_norm) == (bias, norm)
    assert read.raw["architectures"] == [name]


def test_older_spelling_of_rope__read() -> None:
    config = ModelConfig.from_raw(RAW | {"rope_theta": 5e5}, "x")
    assert config.rope_theta == 5e5
    assert config.n_kv_heads == 4
    assert config.head_dim == 8


def test_tied_embeddings__no_head_among_the_tensors() -> None:
    tied = ModelConfig.from_raw(RAW | {"tie_word_embeddings": True}, "x").tensor_shapes()
    free = ModelConfig.from_raw(RAW, "x").tensor_shapes()
    assert set(free) - set(tied) == {"lm_head.weight"}
    assert free["lm_head.weight"] == (50, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None}, "none"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({"use_sliding_window": True}, "sliding"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
    ],
)
def test_what_would_change_the_numbers__refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ModelConfig.from_raw(RAW | change, "x")


def test_missing_key_or_file_or_json__named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hidden_size"):
        ModelConfig.from_raw({k: v for k, v in RAW.items() if k != "hidden_size"}, "x")
    with pytest.raises(UsageError, match=r"no config\.json"):
        ModelConfig.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        ModelConfig.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    assert ModelConfig.read(tmp_path).vocab_size == 50


def test_mixture_of_experts__read_under_both_names_of_the_count(tmp_path: Path) -> None:
    raw = {
        **RAW, "architectures": ["Qwen3MoeForCausalLM"], "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    }  # fmt: skip
    for name in ("num_experts", "num_local_experts"):
        config = ModelConfig.from_raw({**raw, name: 4}, "test")
        assert config.experts == Experts(count=4, active=2, width=24, renormalised=True)
        assert config.mlp_width == 24
        assert config.tensor_shapes()["model.layers.0.mlp.experts.3.down_proj.weight"] == (32, 24)
        assert identity({**raw, name: 4})["num_experts"] == 4
    for mixed in ({"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}):
        with pytest.raises(UsageError, match="layers with and without experts are not supported"):
            ModelConfig.from_raw({**raw, **mixed, "num_experts": 4}, "test")
