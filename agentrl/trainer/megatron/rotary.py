"""Rotary embedding at explicit places, so that packed rows each start at 0 and shared rows keep their places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RotaryAtPlaces(torch.nn.Module):
    """In the place of megatron-core's `RotaryEmbedding`, which knows only 0, 1, 2, ... per line.

    ``places`` int64 [s] must be set before each forward pass of the model.
    """

    def __init__(self, width: int, base: float, device: torch.device) -> None:
        super().__init__()
        self.frequencies = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
        self.places = torch.zeros(0, dtype=torch.int64, device=device)

    def get_rotary_seq_len(self, *unused: Any, **also_unused: Any) -> int:
        """Megatron-core asks; the answer is in ``places``."""
        return len(self.places)

    def forward(self, *unused: Any, **also_unused: Any) -> Tensor:
        """Angles float32 [s, 1, 1, width], both halves alike."""
        angles = torch.outer(self.places.to(torch.float32), self.frequencies)
        return torch.cat([angles, angles], dim=-1)[:, None, None, :]
