"""CPU time of a train step of the default model: against plain transformers with AdamW, and packed against padded rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from agentrl.config.run import ModelSettings
from agentrl.trainer.megatron import model as trained_model
from agentrl.trainer.megatron.microbatch import MicroBatch, Row, Shard, plan
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from benchmarks.report import Row as Line
from benchmarks.report import Sample, at_most, interleaved, table, timed

VOCABULARY = 494
"""Of the default run."""
BATCH, ROUNDS = 64, 7
MAX_TOKENS = 4096
LENGTHS = (26, 37, 51, 72, 86, 100, 107, 112, 115, 121, 127, 130, 136, 142, 151, 160)
"""Sixteenths of the lengths of a code_agent run's trajectories, in tokens; two fifths of them were actions."""


def default_config() -> dict[str, Any]:
    """The model that `agentrl train` builds when none is named."""
    m = ModelSettings()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": m.hidden,
        "intermediate_size": m.ffn,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.hidden // m.heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": m.max_context,
        "tie_word_embeddings": True,
    }


def rows(n: int, vocabulary: int = VOCABULARY) -> list[Row]:
    """Trajectories of the benchmark's lengths, three fifths of each observation."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(n):
        length = LENGTHS[number % len(LENGTHS)]
        positions = torch.arange(length * 3 // 5, length)
        scale = torch.randn(len(positions), generator=generator)
        made.append(Row(torch.randint(0, vocabulary, (length,), generator=generator), positions, {"scale": scale}))
    return made


def measure(quick: bool) -> bool:
    """Print the table; whether the target is met."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = rows(8 if quick else BATCH)
    hf = default_config()
    reference = AutoModelForCausalLM.from_config(
        LlamaConfig(**{k: v for k, v in hf.items() if k != "architectures"}), attn_implementation="sdpa"
    ).float()
    weights = {name: tensor.clone() for name, tensor in reference.state_dict().items() if name != "lm_head.weight"}
    ours = TrainedModel(hf, "policy", weights.items(), OptimizerSettings(), max_tokens=MAX_TOKENS)
    padded = TrainedModel(hf, "policy", weights.items(), OptimizerSettings(), max_tokens=MAX_TOKENS)
    positions = float(sum(len(row.positions) for row in batch))

    def step(model: TrainedModel) -> Sample:
        return timed(
            lambda: model.step(
                batch, lambda o, c: -(o["logprob"] * c["scale"]).sum(), denominator=positions, learning_rate=1e-5
            )
        )

    plain = _plain_step(reference, batch, positions)
    variants: dict[str, Callable[[], Sample]] = {
        "ours": lambda: step(ours),
        "padded": lambda: _padded(lambda: step(padded)),
        "transformers": lambda: timed(plain),
    }
    taken = interleaved(1 if quick else ROUNDS, variants)
    tokens = sum(row.length for row in batch)
    lines = [
        at_most(
            f"train step, {len(batch)} rows, {tokens} tokens",
            f"{taken['ours'].cpu * 1e3:.0f} ms CPU",
            f"transformers + AdamW, padded: {taken['transformers'].cpu * 1e3:.0f} ms",
            taken["ours"].cpu / taken["transformers"].cpu,
            1.15,
        ),
        Line(
            "the same, packed",
            f"{taken['ours'].cpu * 1e3:.0f} ms CPU",
            f"padded: {taken['padded'].cpu * 1e3:.0f} ms",
            taken["ours"].cpu / taken["padded"].cpu,
        ),
    ]
    print(table(lines), flush=True)
    return quick or lines[0].met is True


def _plain_step(reference: Any, batch: Sequence[Row], positions: float) -> Callable[[], None]:
    """What one writes without a library: rows padded as the micro-batches of the same token limit, log-probs, AdamW."""
    adam = torch.optim.AdamW(reference.parameters(), lr=1e-5, betas=(0.9, 0.99), weight_decay=0.0)
    batches = plan(batch, max_tokens=MAX_TOKENS, rank=0, ranks=1, padded=True)

    def step() -> None:
        adam.zero_grad()
        for indices in batches:
            chosen = [batch[i] for i in indices]
            ids = torch.nn.utils.rnn.pad_sequence([row.tokens for row in chosen], batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row.tokens) for row in chosen], batch_first=True)
            scale = torch.zeros(ids.shape)
            for line, row in enumerate(chosen):
                scale[line, row.positions] = row.columns["scale"]
            logits = reference(ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
            logprob = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            (-(logprob * scale[:, 1:]).sum() / positions).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        adam.step()

    return step


def _padded(work: Callable[[], Sample]) -> Sample:
    """The same step with every row padded to the longest of its micro-batch, as filler that is computed and thrown away."""
    with (
        mock.patch.object(trained_model, "collate", _collate_padded),
        mock.patch.object(trained_model, "plan", _plan_padded),
    ):
        return work()


def _plan_padded(batch: Sequence[Row], **limits: Any) -> list[tuple[int, ...]]:
    return plan(batch, **{**limits, "padded": True})


def _collate_padded(
    batch: Sequence[Row], indices: Sequence[int], device: torch.device, shard: Shard | None = None
) -> MicroBatch:
    from dataclasses import replace

    from agentrl.trainer.megatron.microbatch import collate

    chosen = [batch[i] for i in indices]
    width = max(row.length for row in chosen)
    widened = [Row(_wide(row.tokens, width), row.positions, row.columns, row.temperature) for row in chosen]
    micro = collate(widened, range(len(widened)), device)
    lines = torch.zeros(len(chosen), width, dtype=torch.int64)
    for line, row in enumerate(chosen):
        lines[line] = _wide(row.tokens, width)[:width]
    source = torch.cat([line * width + row.positions - 1 for line, row in enumerate(chosen)])
    return replace(
        micro,
        rows=tuple(indices),
        token_ids=lines.flatten().unsqueeze(0),
        places=torch.arange(width).repeat(len(chosen)),
        lengths=(width,) * len(chosen),
        source=source,
    )


def _wide(tokens: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(tokens, (0, max(0, width + 1 - len(tokens))))
