"""What a sum of per-token losses is divided by: computed once for a step, over its whole batch, from the loss masks alone.

Masks count before any ratio decision: a token that a ratio masks contributes 0 to the numerator and stays in the denominator.
Sums of weighted losses may then be split over ranks and micro-batches at will.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "turn_mean"]


class Weights(NamedTuple):
    """``per_token``: one [n] tensor per sequence; loss = sum(weight * loss) / denominator, and 0 means nothing to train on."""

    per_token: list[Tensor]
    denominator: float


def aggregation_weights(
    masks: Sequence[Tensor],
    mode: Aggregation,
    *,
    unit_ids: Sequence[Tensor] | None = None,
    length_norm: float | None = None,
) -> Weights:
    """Turn the loss masks of ALL sequences of a step into per-token weights and the global denominator.

    - ``token_mean``: every token counts once, divided by the tokens of the batch.
    - ``seq_mean_token_mean``: every sequence with a token counts once, divided by their number. A sequence here is a whole
      trajectory: rows that a rewritten context made of it are one.
    - ``seq_mean_token_sum``: the sum of a sequence's tokens, divided by the number of sequences.
    - ``seq_mean_token_sum_norm``: that over the constant ``length_norm``, the same for the whole run (Dr. GRPO).
    - ``turn_mean``: every unit of credit with a token counts once; ``unit_ids`` int64 [n] per sequence.
    """
    counts = [int(mask.sum()) for mask in masks]
    if mode == "token_mean":
        return Weights([mask.float() for mask in masks], float(sum(counts)))
    sequences = float(sum(1 for count in counts if count))
    if mode == "seq_mean_token_mean":
        return Weights([mask.float() / max(count, 1) for mask, count in zip(masks, counts, strict=True)], sequences)
    if mode == "turn_mean":
        if unit_ids is None:
            raise ValueError("turn_mean needs unit_ids")
        units = [_units(mask, ids) for mask, ids in zip(masks, unit_ids, strict=True)]
        return Weights([weights for weights, _ in units], float(sum(n for _, n in units)))
    norm = length_norm if mode == "seq_mean_token_sum_norm" else 1.0
    if norm is None:
        raise ValueError("seq_mean_token_sum_norm needs length_norm")
    return Weights([mask.float() / norm for mask in masks], sequences)


def _units(mask: Tensor, ids: Tensor) -> tuple[Tensor, int]:
    """Each masked token over the masked tokens of its unit; the number of units with one."""
    units = int(ids[-1]) + 1 if len(ids) else 0
    counts = torch.zeros(units).index_add_(0, ids, mask.float())
    return mask.float() / counts.clamp(min=1)[ids], int((counts > 0).sum())
