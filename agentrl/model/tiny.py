"""Builds the default small model: a Llama of about 0.2 M parameters, saved as an ordinary Hugging Face directory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer

from agentrl.errors import UsageError
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import write_tensors
from agentrl.model.tiny_tokenizer import END_OF_TURN, PAD
from agentrl.model.weight_files import WEIGHTS

INIT_STD = 0.02


def build_tiny_model(
    folder: Path,
    *,
    seed: int,
    d: int = 96,
    layers: int = 2,
    heads: int = 4,
    kv: int = 2,
    ff: int = 192,
    max_positions: int = 512,
) -> ModelConfig:
    """Add ``config.json``, ``generation_config.json`` and ``model.safetensors`` to a folder that holds the tokenizer.

    The vocabulary is the tokenizer's, embeddings are tied, weights float32 and a function of the sizes and ``seed`` alone.
    """
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{folder}: build the tokenizer first; there is no tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stop, pad = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(PAD)
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": d,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": d // heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": True,
        "initializer_range": INIT_STD,
        "bos_token_id": None,
        "eos_token_id": stop,
        "pad_token_id": pad,
        "dtype": "float32",
    }
    config = ModelConfig.from_raw(raw, "the tiny model")
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop], "pad_token_id": pad}) + "\n")
    write_tensors(initial_tensors(config, seed), folder / WEIGHTS)
    return config


def initial_tensors(config: ModelConfig, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Random float32 weights: normal with std 0.02, projections back into the residual scaled by 1/sqrt(2 layers)."""
    generator = torch.Generator().manual_seed(seed)
    scaled = INIT_STD / math.sqrt(2 * config.n_layers)
    for name, shape in config.tensor_shapes().items():
        if name.endswith(".bias"):
            yield name, torch.zeros(shape)
        elif len(shape) == 1:
            yield name, torch.ones(shape)
        else:
            std = scaled if name.endswith(("o_proj.weight", "down_proj.weight")) else INIT_STD
            yield name, torch.empty(shape).normal_(0.0, std, generator=generator)
