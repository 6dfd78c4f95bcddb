"""What ranks of one model tell each other beside megatron's own collectives.

The loss of a micro-batch is computed on the last pipeline stage, by every context-parallel and tensor-parallel rank alike, from
the outputs at all positions. A rank sends gradients back only for the positions it computed, and what is summed up for the
caller is taken from the first context-parallel rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor


class _WholePositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, owned: Tensor, n_positions: int) -> Tensor:
        ctx.save_for_backward(owned)
        whole = torch.zeros(n_positions, dtype=own.dtype, device=own.device)
        whole[owned] = own
        dist.all_reduce(whole, group=parallel_state.get_context_parallel_group())
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (owned,) = ctx.saved_tensors
        return gradients[0][owned], None, None


def whole_positions(own: Tensor, owned: Tensor, n_positions: int) -> Tensor:
    """Outputs at the positions ``owned`` by this rank [M] -> at all positions of the micro-batch [N]."""
    if parallel_state.get_context_parallel_world_size() == 1:
        return own
    whole: Tensor = _WholePositions.apply(own, owned, n_positions)
    return whole


def sum_over_copies(value: Tensor) -> Tensor:
    """Sum of what the last stages of all copies of the model have; on the CPU of every rank. ``value`` may be changed."""
    if dist.get_world_size() == 1:
        return value.cpu()
    if parallel_state.get_context_parallel_rank() > 0:
        value.zero_()
    if parallel_state.is_pipeline_last_stage():
        dist.all_reduce(value, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        dist.broadcast(value, last, group=parallel_state.get_pipeline_model_parallel_group())
    return value.cpu()
