"""What ranks send each other lies where they train: NCCL carries nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from agentrl.trainer import gradients
from agentrl.trainer.gradients import GradientMemory
from agentrl.trainer.megatron import moments


class Sent(Exception):
    """Carries the device of what was to be reduced."""


@pytest.fixture(autouse=True)
def two_ranks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        raise Sent(tensor.device.type)

    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    for module in (moments, gradients):
        monkeypatch.setattr(module, "training_device", lambda: torch.device("meta"))


def test_number_of_steps__goes_over_the_training_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_trained", lambda *_: iter(()))
    nothing: Any = None
    with pytest.raises(Sent, match="meta"):
        moments.take_moments(nothing, nothing)


def test_gradient_of_a_rank_without_a_share__goes_over_the_training_device() -> None:
    class Policy:
        def gradient_shares(self) -> list[tuple[list[torch.Tensor], None]]:
            return [([], None)]

    memory, policy = GradientMemory(), Policy()
    memory.compare(policy)  # type: ignore[arg-type]
    with pytest.raises(Sent, match="meta"):
        memory.compare(policy)  # type: ignore[arg-type]
