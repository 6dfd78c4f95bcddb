"""Small Hugging Face models, rows and stored trajectories for the trainer's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from agentrl.trainer.batch import build_batch
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.rows import action_rows
from agentrl.types import Lineage, Outcome, Purpose, Reward, Sampling, Segment, StoredTrajectory, Termination

# On a busy machine the threads of such small models wait for each other most of the time.
torch.set_num_threads(1)

VOCABULARY = 48
_CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def reference_model(kind: str = "llama", *, tied: bool = True, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random Hugging Face model, fp32, whose norms and biases are not trivial."""
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(seed)
    config = _CONFIGS[kind](**{**sizes, **(_EXPERTS if kind == "qwen3_moe" else {}), **overrides})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(4)
    return model


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """As a safetensors file of the model holds them: a tied output layer is not repeated."""
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return by_expert(weights)


def by_expert(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In memory transformers stacks the experts of a layer; in files each has a name of its own."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for number, (gate, up) in enumerate(one.chunk(2) for one in tensor):
                at = name.replace("gate_up_proj", str(number))
                found |= {f"{at}.gate_proj.weight": gate.contiguous(), f"{at}.up_proj.weight": up.contiguous()}
        elif name.endswith("mlp.experts.down_proj"):
            for number, one in enumerate(tensor):
                found[name.replace("down_proj", f"{number}.down_proj.weight")] = one.contiguous()
        else:
            found[name] = tensor
    return found


def trained(
    model: PreTrainedModel, role: str = "policy", *, optimizer: OptimizerSettings | None = None, **options: Any
) -> TrainedModel:
    """The same weights in the trainer."""
    settings = optimizer or OptimizerSettings()
    return TrainedModel(model.config.to_dict(), role, weights_of(model).items(), settings, **options)  # type: ignore[arg-type]


def sample_rows(lengths: Sequence[int], *, seed: int = 1, temperature: float = 1.0) -> list[Row]:
    """Random rows whose second half is asked for, with a column ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        positions = torch.arange((length + 1) // 2, length)
        rows.append(
            Row(
                torch.randint(0, VOCABULARY, (length,), generator=generator),
                positions,
                {"scale": torch.randn(len(positions), generator=generator)},
                temperature,
            )
        )
    return rows


def segment(index: int, n_obs: int, n_act: int, **overrides: Any) -> Segment:
    """A turn with ids that depend on its index, log-prob -1 and version 0."""
    values: dict[str, Any] = {
        "observation": np.arange(n_obs, dtype=np.int32) + 10 * index,
        "action": np.arange(n_act, dtype=np.int32) + 10 * index + 5,
        "logprobs": np.full(n_act, -1.0, dtype=np.float32),
        "versions": np.zeros(n_act, dtype=np.int32),
    }
    return Segment(index=index, **{**values, **overrides})


def stored(number: int = 0, segments: Sequence[Segment] | None = None, **overrides: Any) -> StoredTrajectory:
    """A graded trajectory of two turns; ``reward`` may be a number or None."""
    reward = overrides.pop("reward", 1.0)
    sampling = overrides.pop("sampling", Sampling())
    kind = overrides.pop("logprob_kind", "sampled")
    values: dict[str, Any] = {
        "id": uuid5(UUID(int=0), str(number)),
        "task_id": f"task-{number}",
        "environment": "test",
        "purpose": Purpose.TRAIN,
        "group": None,
        "seat": 0,
        "attempt": 1,
        "seed": number,
        "start_version": 0,
        "termination": Termination.TERMINATED,
        "outcome": Outcome.GRADED,
        "reward": None if reward is None else Reward(reward),
        "lineage": Lineage("model", "t", "c", "test", "1", "float32", sampling, logprob_kind=kind),
        "segments": list(segments) if segments is not None else [segment(0, 4, 3), segment(1, 2, 2)],
    }
    return StoredTrajectory(**{**values, **overrides})


def random_trajectory(number: int, policy: TrainedModel, **changes: Any) -> StoredTrajectory:
    """Two turns of random ids whose log-probs are those of ``policy``: as if it had sampled them."""
    rng = np.random.default_rng(number)
    lengths = [(5, 4), (3, 2 + number % 3)]
    ids = [(rng.integers(0, VOCABULARY, a), rng.integers(0, VOCABULARY, b)) for a, b in lengths]

    def segments(logprobs: list[np.ndarray]) -> list[Segment]:
        return [
            Segment(k, o.astype(np.int32), a.astype(np.int32), logprobs[k], np.zeros(len(a), np.int32))
            for k, (o, a) in enumerate(ids)
        ]

    blank = build_batch([stored(number, segments([np.zeros(len(a), np.float32) for _, a in ids]))], max_context=100)
    logprobs = policy.forward(action_rows(blank, {}))[0]["logprob"].numpy()
    split = np.split(logprobs, [len(ids[0][1])])
    reward = None if changes.get("outcome") is Outcome.POLICY_ENDED else float(number % 2)
    return stored(number, segments(split), **{"reward": reward, **changes})
