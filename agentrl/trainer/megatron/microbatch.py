"""Rows of tokens and how they are cut into padded micro-batches.

A row asks for outputs at positions of its own choice; whatever belongs to a position is a column of that length. Micro-batches
concatenate positions, so nothing downstream ever sees padding, and tokens behind the last position asked are not computed.
The plan depends on the rows alone: every rank computes the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """One context of tokens.

    ``tokens`` int64 [T]; ``positions`` int64 [n], increasing, in 1..T: output i belongs to the state before token positions[i]
    (the log-prob of that token, or the value of its prefix; position T is the state after the last token and has a value only).
    ``columns``: float32 tensors [n] handed to the loss. ``temperature`` divides the logits, as it did in the sampler.
    """

    tokens: Tensor
    positions: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    temperature: float = 1.0
    length: int = field(init=False)
    """Tokens that must be fed for the last position asked; 0 when none is."""

    def __post_init__(self) -> None:
        if len(self.positions) and not (int(self.positions[0]) >= 1 and int(self.positions[-1]) <= len(self.tokens)):
            raise ValueError(f"positions {self.positions[0]}..{self.positions[-1]} of a row of {len(self.tokens)} tokens")
        object.__setattr__(self, "length", int(self.positions[-1]) if len(self.positions) else 0)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded to one length, and their positions concatenated (N in all).

    ``token_ids`` int64 [b, s]; ``source`` int64 [N]: index into the flattened [s, b] hidden states; ``targets`` int64 [N]: the
    token whose log-prob is asked (0 where there is none); ``temperature`` float32 [N]; ``rows``: indices of the rows;
    ``columns``: [N] each.
    """

    rows: tuple[int, ...]
    token_ids: Tensor
    source: Tensor
    targets: Tensor
    temperature: Tensor
    columns: Mapping[str, Tensor]


def plan(rows: Sequence[Row], *, max_tokens: int, rank: int, ranks: int) -> list[tuple[int, ...]]:
    """This rank's micro-batches as tuples of row indices; rows without positions are in none.

    Rows sorted by length are dealt to the ranks in turn, then packed so that rows times longest row stays within ``max_tokens``
    (a longer single row is a micro-batch of its own). A rank without rows gets one empty micro-batch: it still has to join.
    """
    longest_first = sorted((i for i, row in enumerate(rows) if row.length), key=lambda i: (-rows[i].length, i))
    batches: list[list[int]] = []
    for index in longest_first[rank::ranks]:
        if batches and rows[batches[-1][0]].length * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches] or [()]


def collate(rows: Sequence[Row], indices: Sequence[int], device: torch.device) -> MicroBatch:
    """Pad and concatenate the rows named by ``indices``; without rows, one filler token and no positions."""
    chosen = [rows[i] for i in indices]
    width = max((row.length for row in chosen), default=1)
    token_ids = torch.zeros(max(len(chosen), 1), width, dtype=torch.int64)
    source, targets, temperature = [], [], []
    for number, row in enumerate(chosen):
        token_ids[number, : row.length] = row.tokens[: row.length]
        source.append((row.positions - 1) * len(chosen) + number)
        targets.append(_targets(row))
        temperature.append(torch.full((len(row.positions),), row.temperature, dtype=torch.float32))
    names = chosen[0].columns if chosen else ()
    return MicroBatch(
        rows=tuple(indices),
        token_ids=token_ids.to(device),
        source=_join(source, torch.int64).to(device),
        targets=_join(targets, torch.int64).to(device),
        temperature=_join(temperature, torch.float32).to(device),
        columns={name: _join([row.columns[name] for row in chosen], torch.float32).to(device) for name in names},
    )


def _targets(row: Row) -> Tensor:
    if row.length < len(row.tokens):
        return row.tokens[row.positions]
    return torch.cat([row.tokens[row.positions[:-1]], torch.zeros(1, dtype=torch.int64)])


def _join(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=dtype)
