"""A Hugging Face ``config.json`` as one dataclass, for the decoders that engine and trainer both know.

HF names are the only vocabulary between trainer, weights and engine: `tensor_shapes` lists them for a configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import UsageError
from agentrl.types import Json

VALUE_HEAD_PREFIX = "value_head."
"""Names of a critic's head in a file of weights; a policy's has none."""
_SHARED = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")

ROPE_THETA, RMS_EPS = 10_000.0, 1e-6
"""Of a file that leaves them out, as transformers reads it."""
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLP of each layer as a mixture: a router chooses ``active`` of ``count`` experts for each token."""

    count: int
    active: int
    width: int
    """Columns of one expert."""
    renormalised: bool
    """The weights of the chosen ones add up to 1."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and options of a decoder; ``raw`` is the file's content, unchanged."""

    architecture: str
    """``llama``, ``qwen2``, ``qwen3`` or ``qwen3_moe``."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    max_positions: int
    tie_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    experts: Experts | None
    """None: each layer has one MLP, of ``intermediate_size`` columns."""
    raw: Mapping[str, Json] = field(repr=False, compare=False)

    @classmethod
    def read(cls, model_dir: Path) -> ModelConfig:
        """From ``model_dir/config.json``. `UsageError` when it is missing, unreadable or of an unknown architecture."""
        path = Path(model_dir) / "config.json"
        if not path.is_file():
            raise UsageError(f"{model_dir}: no config.json there; name a model directory in Hugging Face format")
        return cls.from_raw(read_object(path, "a model configuration"), str(path))

    @classmethod
    def from_raw(cls, raw: Mapping[str, Json], source: str) -> ModelConfig:
        """From the parsed file; ``source`` names it in errors."""
        names = raw.get("architectures") or ["(none)"]
        architecture = ARCHITECTURES.get(names[0])
        if architecture is None:
            raise UsageError(f"{source}: architecture {names[0]!r} is not one of {', '.join(ARCHITECTURES)}")
        _refuse_unsupported(raw, source)
        try:
            return cls._from_known(raw, architecture)
        except KeyError as error:
            raise UsageError(f"{source}: the key {error.args[0]!r} is missing") from error

    @classmethod
    def _from_known(cls, raw: Mapping[str, Json], architecture: str) -> ModelConfig:
        hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
        rope = raw.get("rope_parameters") or {}
        return cls(
            architecture=architecture,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden,
            intermediate_size=int(raw["intermediate_size"]),
            n_layers=int(raw["num_hidden_layers"]),
            n_heads=heads,
            n_kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            rms_eps=float(raw.get("rms_norm_eps", RMS_EPS)),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or ROPE_THETA),
            max_positions=int(raw["max_position_embeddings"]),
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture in ("qwen3", "qwen3_moe"),
            experts=experts_of(raw),
            raw=dict(raw),
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """HF name to shape of every weight, in file order; no ``lm_head`` when embeddings are tied."""
        d, q, kv = self.hidden_size, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, d)}
        for layer in range(self.n_layers):
            at = f"model.layers.{layer}."
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, d)
                if self.qkv_bias:
                    shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
            shapes[f"{at}self_attn.o_proj.weight"] = (d, q)
            if self.qk_norm:
                shapes[f"{at}self_attn.q_norm.weight"] = (self.head_dim,)
                shapes[f"{at}self_attn.k_norm.weight"] = (self.head_dim,)
            shapes |= self._mlp_shapes(at)
            shapes[f"{at}input_layernorm.weight"] = (d,)
            shapes[f"{at}post_attention_layernorm.weight"] = (d,)
        shapes["model.norm.weight"] = (d,)
        if not self.tie_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, d)
        return shapes

    @property
    def mlp_width(self) -> int:
        """Columns of one MLP, which tensor-parallel ranks divide among them."""
        return self.intermediate_size if self.experts is None else self.experts.width

    def _mlp_shapes(self, at: str) -> dict[str, tuple[int, ...]]:
        d, width = self.hidden_size, self.mlp_width
        shapes: dict[str, tuple[int, ...]] = {}
        if self.experts is not None:
            shapes[f"{at}mlp.gate.weight"] = (self.experts.count, d)
        for mlp in [f"{at}mlp."] if self.experts is None else [f"{at}mlp.experts.{n}." for n in range(self.experts.count)]:
            shapes |= {f"{mlp}gate_proj.weight": (width, d), f"{mlp}up_proj.weight": (width, d)}
            shapes[f"{mlp}down_proj.weight"] = (d, width)
        return shapes

    def critic_shapes(self) -> dict[str, tuple[int, ...]]:
        """The same of a critic with this backbone: a scalar head in the place of the output layer."""
        shapes = self.tensor_shapes()
        shapes.pop("lm_head.weight", None)
        head = {f"{VALUE_HEAD_PREFIX}weight": (1, self.hidden_size), f"{VALUE_HEAD_PREFIX}bias": (1,)}
        return shapes | head


def _refuse_unsupported(raw: Mapping[str, Json], source: str) -> None:
    """What would change the numbers if it were ignored."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise UsageError(f"{source}: rope type {kind!r} is not supported, only 'default'")
    if raw.get("use_sliding_window"):
        raise UsageError(f"{source}: sliding-window attention is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise UsageError(f"{source}: activation {raw['hidden_act']!r} is not supported, only 'silu'")
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise UsageError(
            f"{source}: mlp_only_layers and decoder_sparse_step: layers with and without experts are not supported"
        )
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise UsageError(f"{source}: attention_bias and mlp_bias are not supported")
    if raw.get("attention_dropout"):
        raise UsageError(f"{source}: attention_dropout must be 0: log-probs of sampler and trainer would differ")


def experts_of(raw: Mapping[str, Json]) -> Experts | None:
    """The mixture of experts that a parsed file describes, if it does."""
    if raw.get("model_type") != "qwen3_moe" and raw.get("architectures") != ["Qwen3MoeForCausalLM"]:
        return None
    return Experts(
        count=_experts_in(raw) or 128,
        active=int(raw.get("num_experts_per_tok", 8)),
        width=int(raw["moe_intermediate_size"]),
        renormalised=bool(raw.get("norm_topk_prob", False)),
    )


def identity(raw: Mapping[str, Json]) -> dict[str, Json]:
    """What two models have in common when one can go on from a checkpoint of the other, by the keys of ``config.json``."""
    return {**{name: raw.get(name) for name in _SHARED}, "num_experts": _experts_in(raw)}


def _experts_in(raw: Mapping[str, Json]) -> int | None:
    count = raw.get("num_experts") or raw.get("num_local_experts")  # as newer releases of transformers call it
    return None if count is None else int(count)


def read_object(path: Path, what: str) -> dict[str, Json]:
    """The JSON object in a file of a model directory, which should hold ``what``; else `UsageError`."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: not {what} but a JSON {type(found).__name__}")
    return found
