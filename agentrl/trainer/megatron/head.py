"""What stands in the place of the output layer: log-probs and entropy, or values, at the asked positions only.

Logits of a whole micro-batch never exist: positions are taken in chunks of at most `CHUNK_LOGITS` logits, and the backward pass
computes each chunk's logits again. The softmax runs over all tensor-parallel ranks, of which each holds a slice of the
vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from agentrl.algorithm.logprobs import token_logprob
from agentrl.trainer.megatron.microbatch import MicroBatch

CHUNK_LOGITS = 2**25
"""Logits that exist at once, on each rank: 128 MiB of float32."""
_NOTHING = -1e30
"""The logit of a row that only pads the vocabulary; finite, because it is multiplied by its probability 0."""


class LogprobHead(ColumnParallelLinear):
    """The output layer of a policy. ``micro`` must be set before each forward pass; ``vocabulary``: rows that are tokens."""

    micro: MicroBatch
    vocabulary: int
    chunk_logits: int = CHUNK_LOGITS

    def forward(
        self, hidden: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        """hidden [s, b, h] -> ([M, 2] float32: the target's log-prob at its row's temperature, entropy in nats; no bias)."""
        weight = self.weight if weight is None else weight
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden)
        micro = self.micro
        chosen = hidden.flatten(0, 1)[micro.source]
        if self.output_size_per_partition == self.vocabulary and len(chosen) * self.vocabulary <= self.chunk_logits:
            logprob, entropy = token_logprob(F.linear(chosen, weight), micro.targets, micro.temperature)
        else:
            rank = parallel_state.get_tensor_model_parallel_rank()
            first = rank * self.output_size_per_partition
            logprob, entropy = _ChunkedLogprob.apply(
                chosen, weight, micro.targets - first, micro.temperature, self.vocabulary - first, self.chunk_logits
            )
        return torch.stack([logprob, entropy], dim=1), None


class ValueHead(torch.nn.Linear):
    """The scalar head of a critic. Weight and bias start at zero, so that V = 0 before the first update."""

    micro: MicroBatch

    def __init__(self, hidden_size: int, *, sequence_parallel: bool = False) -> None:
        super().__init__(hidden_size, 1)
        self.sequence_parallel = sequence_parallel
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(  # type: ignore[override]
        self, hidden: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        """hidden [s, b, h] -> ([M, 1] float32, no bias): the call signature of megatron's output layer.

        The product itself is float32: bf16 would round values near 1 to steps of 0.004, which advantages are made of.
        """
        if self.sequence_parallel:
            # Every rank computes the same values from all tokens, so the gradient is split again, not summed.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return F.linear(hidden.flatten(0, 1)[self.micro.source].float(), self.weight.float(), self.bias.float()), None

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """For megatron's checkpoints: both tensors are whole on every rank."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        state = self.state_dict(prefix="", keep_vars=True)
        whole: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            state,
            prefix,
            {},
            sharded_offsets,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        )
        return whole


class _ChunkedLogprob(torch.autograd.Function):
    """Log-prob of one target per row and entropy, from hidden states and this rank's slice of the output weight.

    ``targets`` and ``tokens`` count from the slice's first row; a target outside the slice belongs to another rank.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor | None, tokens: int, chunk_logits: int
    ) -> tuple[Tensor, Tensor]:
        ctx.rows = max(1, chunk_logits // max(1, len(weight)))
        ctx.tokens = tokens
        outputs = []
        for rows in torch.arange(len(hidden), device=hidden.device).split(ctx.rows):
            logits = _logits(hidden, weight, temperature, tokens, rows)
            outputs.append(_statistics(logits, targets[rows]))
        normaliser, logprob, entropy = (
            (torch.cat(column) for column in zip(*outputs, strict=True))
            if outputs
            else (torch.zeros(0, device=hidden.device) for _ in range(3))
        )
        ctx.save_for_backward(hidden, weight, targets, temperature, normaliser, entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        hidden, weight, targets, temperature, normaliser, entropy = ctx.saved_tensors
        of_logprob, of_entropy = gradients
        use_entropy = bool(of_entropy.any())
        to_hidden = torch.zeros_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in torch.arange(len(hidden), device=hidden.device).split(ctx.rows):
            surprise = _logits(hidden, weight, temperature, ctx.tokens, rows).sub_(normaliser[rows].unsqueeze(-1))
            probabilities = surprise.exp()
            gradient = probabilities * -of_logprob[rows].unsqueeze(-1)
            if use_entropy:  # dH/dz = -p (log p + H)
                surprise.add_(entropy[rows].unsqueeze(-1)).mul_(probabilities)
                gradient.addcmul_(surprise, -of_entropy[rows].unsqueeze(-1))
            own = _own(targets[rows], len(weight)).nonzero().flatten()
            gradient[own, targets[rows][own]] += of_logprob[rows][own]
            if temperature is not None:
                gradient /= temperature[rows].unsqueeze(-1)
            gradient = gradient.to(hidden.dtype)
            to_hidden[rows] = gradient @ weight
            if to_weight is not None:
                to_weight += gradient.t() @ hidden[rows]
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: Tensor | None, tokens: int, rows: Tensor) -> Tensor:
    logits = F.linear(hidden[rows], weight).float()
    if temperature is not None:
        logits = logits / temperature[rows].unsqueeze(-1)
    if tokens < len(weight):
        logits[:, max(tokens, 0) :] = _NOTHING
    return logits


def _own(targets: Tensor, size: int) -> Tensor:
    return (targets >= 0) & (targets < size)


def _statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log of the sum of exponentials, log-prob, entropy) per row, over all slices."""
    group = parallel_state.get_tensor_model_parallel_group()
    shared = dist.get_world_size(group) > 1
    own = _own(targets, logits.shape[1])
    target = torch.where(own, logits.gather(-1, targets.where(own, 0).unsqueeze(-1)).squeeze(-1), 0.0)
    largest = logits.amax(-1)
    if shared:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    weights = (logits - largest.unsqueeze(-1)).exp_()
    sums = torch.stack([weights.sum(-1), torch.einsum("nv,nv->n", weights, logits), target])
    if shared:
        dist.all_reduce(sums, group=group)
    normaliser = sums[0].log() + largest
    return normaliser, sums[2] - normaliser, normaliser - sums[1] / sums[0]
