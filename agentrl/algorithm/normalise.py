"""Whitening over a whole batch, from sums that add over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

VARIANCE_EPS = 1e-8


class Moments(NamedTuple):
    """Count, sum and sum of squares in float64; those of parts add up to those of the whole."""

    n: float
    total: float
    squares: float

    @property
    def mean(self) -> float:
        return self.total / self.n if self.n else 0.0

    @property
    def variance(self) -> float:
        """ddof 0."""
        return max(self.squares / self.n - self.mean**2, 0.0) if self.n else 0.0

    def __add__(self, other: object) -> Moments:
        if not isinstance(other, Moments):
            return NotImplemented
        return Moments(self.n + other.n, self.total + other.total, self.squares + other.squares)


def moments(values: Sequence[Tensor], masks: Sequence[Tensor], *, around: float = 0.0) -> Moments:
    """Over the masked positions. ``around`` is subtracted first: with the mean, the squares don't cancel for long sums."""
    result = Moments(0.0, 0.0, 0.0)
    for value, mask in zip(values, masks, strict=True):
        chosen = value[mask.bool()].double() - around
        result += Moments(float(len(chosen)), float(chosen.sum()), float((chosen**2).sum()))
    return result


def whiten(values: Sequence[Tensor], masks: Sequence[Tensor], *, eps: float = VARIANCE_EPS) -> list[Tensor]:
    """(x - mean) / sqrt(var + eps) over the masked positions of all tensors, ddof 0; masked-out positions become 0.

    Two passes: the mean first, then the squares around it.
    """
    mean = moments(values, masks).mean
    variance = moments(values, masks, around=mean).variance
    scale = (variance + eps) ** -0.5
    return [
        torch.where(mask.bool(), (value.double() - mean) * scale, 0.0).to(value.dtype)
        for value, mask in zip(values, masks, strict=True)
    ]
