"""Log-probs of chosen tokens and the entropy of their distributions, from logits; float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _TokenLogprob(torch.autograd.Function):
    """log softmax at one target per row; the backward pass keeps one matrix of probabilities and nothing else."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        normaliser = logits.logsumexp(-1, keepdim=True)
        logprob = (logits.gather(-1, targets.unsqueeze(-1)) - normaliser).squeeze(-1)
        probabilities = (logits - normaliser).exp_()
        entropy = normaliser.squeeze(-1) - torch.einsum("nv,nv->n", probabilities, logits)
        ctx.save_for_backward(probabilities, targets)
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        probabilities, targets = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(-1)
        return (probabilities * -gradient).scatter_add_(-1, targets.unsqueeze(-1), gradient), None


def token_logprob(logits: Tensor, targets: Tensor, temperature: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """logits [N, V], targets int64 [N] -> log-prob [N] with gradient, entropy [N] in nats without; float32 (float64 stays).

    ``temperature`` [N] divides the logits, as the sampler did; dividing log-probs instead would be another distribution.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    if temperature is not None:
        logits = logits / temperature.unsqueeze(-1)
    logprob, entropy = _TokenLogprob.apply(logits, targets)
    return logprob, entropy
