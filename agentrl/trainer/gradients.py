"""How the policy's gradient turns from one step to the next."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.algorithm.metrics import Cosine, gradient_cosine
from agentrl.trainer.megatron.cpu import training_device
from agentrl.trainer.megatron.model import TrainedModel


class GradientMemory:
    """Keeps a copy of this rank's share of the last step's gradient: as much memory as that share."""

    def __init__(self) -> None:
        self._last: list[list[Tensor]] | None = None

    def compare(self, policy: TrainedModel) -> dict[str, float]:
        """``gradient_cosine`` of the step just taken with the one before; empty after the first, or when one of them is 0.

        All ranks call it after the same steps.
        """
        shares = policy.gradient_shares()
        last, self._last = self._last, [now for now, _ in shares]
        if last is None:
            return {}
        total = Cosine(0.0, 0.0, 0.0)
        for before, (now, group) in zip(last, shares, strict=True):
            sums = torch.tensor(gradient_cosine(before, now), dtype=torch.float64, device=training_device())
            dist.all_reduce(sums, group=group)
            total = Cosine(*(a + b for a, b in zip(total, sums.tolist(), strict=True)))
        return {} if total.value is None else {"gradient_cosine": total.value}
