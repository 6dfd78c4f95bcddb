"""What one step has claimed, in one claim or in several."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from torch import Tensor

from agentrl.store.contract import Claim, ClaimedItem
from agentrl.trainer.batch import Batch
from agentrl.types import DropReason


@dataclass
class Taken:
    """``consumed`` and ``dropped`` together are all items, by (item, token); ``batch`` and ``lags``, per trajectory [n], are of
    the consumed ones. ``waited`` and ``trained_s``: seconds so far."""

    items: list[ClaimedItem] = field(default_factory=list)
    batch: Batch = field(default_factory=lambda: Batch([], []))
    lags: list[Tensor] = field(default_factory=list)
    consumed: list[tuple[UUID, int]] = field(default_factory=list)
    dropped: list[tuple[UUID, int, DropReason]] = field(default_factory=list)
    waited: float = 0.0
    trained_s: float = 0.0
    _last: Claim | None = None

    def add(
        self,
        claim: Claim,
        batch: Batch,
        lags: Sequence[Tensor],
        consumed: Sequence[tuple[UUID, int]],
        dropped: Sequence[tuple[UUID, int, DropReason]],
    ) -> None:
        """A claim with items and what became of them."""
        self.items += claim.items
        self.batch.trajectories.extend(batch.trajectories)
        self.lags += lags
        self.consumed += consumed
        self.dropped += dropped
        self._last = claim

    @contextmanager
    def training(self) -> Iterator[None]:
        """Counts the time inside as training."""
        began = time.monotonic()
        yield
        self.trained_s += time.monotonic() - began

    @property
    def size(self) -> int:
        """Trajectories claimed."""
        return sum(len(item.trajectories) for item in self.items)

    @property
    def leases(self) -> list[tuple[UUID, int]]:
        return [(item.item, item.token) for item in self.items]

    @property
    def claim(self) -> Claim:
        """The last one."""
        assert self._last is not None, "nothing was claimed"
        return self._last
