"""RMSNorm for the megatron-core layer; legal under sequence parallelism, which megatron's own torch wrapper refuses."""

from __future__ import annotations

from typing import Any

import torch


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm whose weight is tagged, so that megatron-core sums its gradient over the tensor-parallel ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **unused: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
