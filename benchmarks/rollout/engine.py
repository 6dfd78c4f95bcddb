"""The in-process engine against transformers' ``generate``: same model, same prompts, same lengths, one core, float32.

Prompts have 8 to 64 tokens and answers 8 to 96, drawn once. ``generate`` gets all sequences as one left-padded batch with a
key-value cache and ends each at its own length; only tokens that were asked for count. Both sample at temperature 1 and are
measured in turns; the engine also returns log-probs, which are compared with those of one full forward by transformers.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.engine.local import LocalEngine
from agentrl.model.config import ModelConfig
from agentrl.model.tiny import build_tiny_model, initial_tensors
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.types import PolicyVersion, Sampling
from agentrl.weights.files import export_weights
from benchmarks.report import Row, at_least

CONCURRENT = (1, 8, 32, 64)
ROUNDS = 5
TARGET, TARGET_FROM = 2.0, 32
CLOSE = 1e-5
MAX_CONTEXT = 192


@dataclass(frozen=True)
class Work:
    """Sequences to complete: prompts and how many tokens each gets."""

    prompts: list[list[int]]
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class _OwnLength(StoppingCriteria):
    """Each row ends at its own length."""

    def __init__(self, width: int, lengths: list[int]) -> None:
        self._ends = torch.tensor(lengths) + width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self._ends


def measure(quick: bool) -> list[Row]:
    """Two rows for each number of concurrent sequences: speed, and the largest difference of a log-prob."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), (1, 8) if quick else CONCURRENT, 1 if quick else ROUNDS))


async def _measure(folder: Path, concurrent: tuple[int, ...], rounds: int) -> list[Row]:
    model_dir, version = _model(folder)
    engine = LocalEngine(model_dir, slots=max(concurrent))
    await engine.load(version)
    reference = _transformers(model_dir, version)
    rows = []
    for n in concurrent:
        work = _work(n, reference.config.vocab_size)
        ours, theirs = [], []
        for number in range(rounds + 1):
            began = time.perf_counter()
            generations = await _play(engine, work, number)
            middle = time.perf_counter()
            _generate(reference, work)
            if number:  # the first one warms up
                ours.append(work.tokens / (middle - began))
                theirs.append(work.tokens / (time.perf_counter() - middle))
        rows += _rows(n, work, statistics.median(ours), statistics.median(theirs), _largest_gap(reference, work, generations))
    await engine.close()
    return rows


def _rows(n: int, work: Work, ours: float, theirs: float, gap: float) -> list[Row]:
    name = f"{n} sequences, {work.tokens:,} tokens"
    speeds = f"{ours:,.0f} tokens/s", f"generate: {theirs:,.0f} tokens/s"
    fast = Row(name, *speeds, ours / theirs) if n < TARGET_FROM else at_least(name, *speeds, ours / theirs, TARGET)
    exact = Row(f"{n} sequences, log-probs", f"{gap:.1e} apart at most", "one full forward", None, f"< {CLOSE:g}", gap < CLOSE)
    return [fast, exact]


def _model(folder: Path) -> tuple[Path, PolicyVersion]:
    """The small model of a default run, with weights that are far from uniform."""
    model_dir = folder / "model"
    build_tokenizer(["some text to build a vocabulary from"] * 10, TokenizerPlan(), model_dir)
    build_tiny_model(model_dir, seed=0, d=96, layers=2, heads=4, kv=2, ff=192, max_positions=MAX_CONTEXT)
    tensors = ((name, t * 4 if t.dim() > 1 else t) for name, t in initial_tensors(ModelConfig.read(model_dir), seed=1))
    file = export_weights(tensors, folder / "weights")
    return model_dir, PolicyVersion(1, None, 1, file.uri, file.checksum, "published")


def _transformers(model_dir: Path, version: PolicyVersion) -> Any:
    from safetensors.torch import load_file

    model = LlamaForCausalLM(LlamaConfig.from_pretrained(model_dir)).eval()
    model.load_state_dict(load_file(version.uri), strict=False)
    model.tie_weights()
    return model


def _work(n: int, vocabulary: int) -> Work:
    rng = np.random.default_rng(n)
    prompts = [rng.integers(3, vocabulary, rng.integers(8, 65)).tolist() for _ in range(n)]
    return Work(prompts, rng.integers(8, 97, n).tolist())


async def _play(engine: LocalEngine, work: Work, number: int) -> list[Generation]:
    async def one(i: int) -> Generation:
        seed, session = 1000 * number + i, f"{number}-{i}"
        request = GenerateRequest(session, work.prompts[i], work.lengths[i], (), Sampling(1.0), seed)
        generation = await engine.generate(request)
        engine.release(session)  # no further turn: nobody needs to wait for it
        return generation

    return await asyncio.gather(*(one(i) for i in range(len(work.prompts))))


@torch.inference_mode()
def _generate(model: Any, work: Work) -> None:
    width = max(map(len, work.prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in work.prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in work.prompts])
    stop = StoppingCriteriaList([_OwnLength(width, work.lengths)])
    model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        temperature=1.0,
        max_new_tokens=max(work.lengths),
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=stop,
    )


@torch.inference_mode()
def _largest_gap(model: Any, work: Work, generations: list[Generation]) -> float:
    gap = 0.0
    for prompt, generation in zip(work.prompts, generations, strict=True):
        ids = torch.tensor([[*prompt, *generation.token_ids.tolist()]])
        scores = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)
        expected = scores.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
        gap = max(gap, float(np.abs(expected - generation.logprobs).max()))
    return gap
