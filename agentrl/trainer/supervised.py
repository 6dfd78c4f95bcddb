"""Supervised fine-tuning on the positions of token rows: the warm start of a small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from agentrl.errors import UsageError
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import Outputs, TrainedModel

WARMUP_STEPS = 20
FINAL_SHARE = 0.1
WINDOW = 8


def scheduled_rate(step: int, steps: int, peak: float) -> float:
    """Learning rate of step 0, 1, ...: linear rise over the warm-up, then linear fall to a tenth of the peak."""
    if step < WARMUP_STEPS:
        return peak * (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(steps - 1 - WARMUP_STEPS, 1)
    return peak * (1 - (1 - FINAL_SHARE) * min(done, 1.0))


def fit(
    model: TrainedModel,
    rows: Sequence[Row],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    on_progress: Callable[[int, float], None] | None = None,
) -> float:
    """Minimise the mean negative log-prob of the tokens at the rows' positions; returns the mean loss of the last tenth.

    Rows are drawn in shuffled epochs, reproducibly by ``seed``; batches hold rows of similar length, so that little is padding.
    ``learning_rate`` is the peak of `scheduled_rate`.
    ``on_progress(steps done, loss)`` is called after each step; it may raise to stop.
    """
    losses: list[float] = []
    batches = batches_by_length([len(row.tokens) for row in rows], batch_size, seed)
    for step in range(steps):
        batch = [rows[i] for i in next(batches)]
        tokens = float(sum(len(row.positions) for row in batch))
        rate = scheduled_rate(step, steps, learning_rate)
        losses.append(model.step(batch, _negative_logprob, denominator=tokens, learning_rate=rate).loss)
        if on_progress is not None:
            on_progress(step + 1, losses[-1])
    tail = losses[-max(steps // 10, 1) :]
    return sum(tail) / len(tail)


def _negative_logprob(outputs: Outputs, columns: Mapping[str, Tensor]) -> Tensor:
    return -outputs["logprob"].sum()


def batches_by_length(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of row numbers: a shuffled window of `WINDOW` batches is cut by length, and its batches come shuffled."""
    if not lengths:
        raise UsageError("no demonstrations to train on")
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    while True:
        while len(order) < WINDOW * size:
            order += torch.randperm(len(lengths), generator=generator).tolist()
        window, order = order[: WINDOW * size], order[WINDOW * size :]
        window.sort(key=lambda i: lengths[i])
        for k in torch.randperm(WINDOW, generator=generator).tolist():
            yield window[k * size : (k + 1) * size]
