"""Rows of tokens and how they are cut into micro-batches.

A row asks for outputs at positions of its own choice; whatever belongs to a position is a column of that length. Micro-batches
concatenate positions, so nothing downstream ever sees padding, and tokens behind the last position asked are not computed.
Rows are packed end to end without padding; only when the tokens of a row are shared between context-parallel ranks are they
padded to one length. The plan depends on the rows alone: every rank computes the same one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Shard(NamedTuple):
    """Which tokens of each row this rank computes: ``part`` of ``parts`` context-parallel ranks; ``multiple``: the sequence
    parallel ranks that the local tokens are divided among once more; ``packed``: shared rows lie end to end, each padded to a
    length that divides, instead of all to one."""

    part: int = 0
    parts: int = 1
    multiple: int = 1
    packed: bool = False

    def places(self, width: int) -> Tensor:
        """int64 [width / parts]: with ``parts`` ranks this one holds chunks ``part`` and ``2 parts - 1 - part``, so that causal
        attention costs each the same. ``width`` must be a multiple of 2 ``parts``."""
        if self.parts == 1:
            return torch.arange(width)
        chunks = torch.arange(width).chunk(2 * self.parts)
        return torch.cat([chunks[self.part], chunks[2 * self.parts - 1 - self.part]])


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows side by side, and their positions concatenated (N in all, of which this rank computes M).

    ``token_ids`` int64 [b, s]; ``places`` int64 [s]: each token's place in its row; ``lengths``: of the packed rows in the one
    line of ``token_ids``, None when rows are padded lines; ``source`` int64 [M]: index into the flattened [s, b] hidden states;
    ``owned`` int64 [M]: which of the N positions they are; ``targets`` int64 [M]: the token whose log-prob is asked (0 where
    there is none); ``temperature`` float32 [M], None when all are 1; ``rows``: indices of the rows; ``columns``: [N] each.
    """

    rows: tuple[int, ...]
    token_ids: Tensor
    places: Tensor
    lengths: tuple[int, ...] | None
    source: Tensor
    owned: Tensor
    targets: Tensor
    temperature: Tensor | None
    columns: Mapping[str, Tensor]
    n_positions: int


def plan(rows: Sequence[Row], *, max_tokens: int, rank: int, ranks: int, padded: bool = False) -> list[tuple[int, ...]]:
    """This rank's micro-batches as tuples of row indices; rows without positions are in none.

    No micro-batch has more than ``max_tokens`` tokens (a longer single row is a micro-batch of its own). Packed: as few as can
    be, all ranks the same number, balanced by tokens. ``padded``: rows of similar length, and padding counts as tokens. A rank
    without rows gets one empty micro-batch: it still has to join.
    """
    longest_first = sorted((i for i, row in enumerate(rows) if row.length), key=lambda i: (-rows[i].length, i))
    if not padded:
        return _balanced(rows, longest_first, max_tokens, ranks)[rank::ranks]
    batches: list[list[int]] = []
    for index in longest_first[rank::ranks]:
        if batches and rows[batches[-1][0]].length * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches] or [()]


def _balanced(rows: Sequence[Row], longest_first: Sequence[int], max_tokens: int, ranks: int) -> list[tuple[int, ...]]:
    total = sum(rows[i].length for i in longest_first)
    count = ranks * max(1, math.ceil(total / (ranks * max_tokens)))
    while True:
        loads = [(0, number) for number in range(count)]
        bins: list[list[int]] = [[] for _ in range(count)]
        fits = True
        for index in longest_first:
            load, number = heapq.heappop(loads)
            fits = fits and (not bins[number] or load + rows[index].length <= max_tokens)
            bins[number].append(index)
            heapq.heappush(loads, (load + rows[index].length, number))
        if fits:
            return [tuple(batch) for batch in bins]
        count += ranks


def collate(rows: Sequence[Row], indices: Sequence[int], device: torch.device, shard: Shard | None = None) -> MicroBatch:
    """Lay out the rows named by ``indices``; without rows, filler tokens and no positions."""
    shard = shard or Shard()
    chosen = [rows[i] for i in indices]
    lay_out = _packed if shard.parts == 1 else _packed_shares if shard.packed else _padded
    token_ids, places, lengths, source = lay_out(chosen, shard)
    owned = torch.arange(len(source)) if shard.parts == 1 else (source >= 0).nonzero().flatten()
    targets = _join([_targets(row) for row in chosen], torch.int64)
    scaled = any(row.temperature != 1 for row in chosen)
    temperature = _join([torch.full((len(row.positions),), row.temperature) for row in chosen], torch.float32)
    names = chosen[0].columns if chosen else ()
    return MicroBatch(
        rows=tuple(indices),
        token_ids=token_ids.to(device),
        places=places.to(device),
        lengths=lengths,
        source=source[owned].to(device),
        owned=owned.to(device),
        targets=targets[owned].to(device),
        temperature=temperature[owned].to(device) if scaled else None,
        columns={name: _join([row.columns[name] for row in chosen], torch.float32).to(device) for name in names},
        n_positions=len(targets),
    )


_Laid = tuple[Tensor, Tensor, tuple[int, ...] | None, Tensor]


def _packed(chosen: Sequence[Row], shard: Shard) -> _Laid:
    total = sum(row.length for row in chosen)
    filler = -total % shard.multiple if total else shard.multiple
    starts, start = [], 0
    for row in chosen:
        starts.append(start)
        start += row.length
    lengths = [row.length for row in chosen] + ([filler] if filler else [])
    tokens = [row.tokens[: row.length] for row in chosen] + [torch.zeros(filler, dtype=torch.int64)]
    source = [row.positions - 1 + start for row, start in zip(chosen, starts, strict=True)]
    places = torch.cat([torch.arange(length) for length in lengths])
    return torch.cat(tokens).unsqueeze(0), places, tuple(lengths), _join(source, torch.int64)


def _packed_shares(chosen: Sequence[Row], shard: Shard) -> _Laid:
    """``lengths`` are those of whole rows; ``source`` is -1 where another rank has the position."""
    step = 2 * shard.parts * shard.multiple
    tokens, places, lengths, source = [], [], [], []
    start = 0
    for row in chosen or [Row(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))]:
        width = max(row.length + -row.length % step, step)
        whole = torch.zeros(width, dtype=torch.int64)
        whole[: row.length] = row.tokens[: row.length]
        own = shard.places(width)
        local = torch.full((width,), -1, dtype=torch.int64)
        local[own] = torch.arange(len(own)) + start
        tokens.append(whole[own])
        places.append(own)
        lengths.append(width)
        source.append(local[row.positions - 1])
        start += len(own)
    return torch.cat(tokens).unsqueeze(0), torch.cat(places), tuple(lengths), _join(source, torch.int64)


def _padded(chosen: Sequence[Row], shard: Shard) -> _Laid:
    """``source`` is -1 where another rank has the position."""
    step = math.lcm(2 * shard.parts, shard.parts * shard.multiple)
    width = max(max((row.length for row in chosen), default=1) + step - 1, 1) // step * step
    whole = torch.zeros(max(len(chosen), 1), width, dtype=torch.int64)
    for line, row in enumerate(chosen):
        whole[line, : row.length] = row.tokens[: row.length]
    places = shard.places(width)
    local = torch.full((width,), -1, dtype=torch.int64)
    local[places] = torch.arange(len(places))
    source = []
    for line, row in enumerate(chosen):
        at = local[row.positions - 1]
        source.append(torch.where(at >= 0, at * len(chosen) + line, -1))
    return whole[:, places], places, None, _join(source, torch.int64)


def _targets(row: Row) -> Tensor:
    if row.length < len(row.tokens):
        return row.tokens[row.positions]
    return torch.cat([row.tokens[row.positions[:-1]], torch.zeros(1, dtype=torch.int64)])


def _join(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=dtype)
