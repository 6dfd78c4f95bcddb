"""Log-probs of chosen tokens and the entropy of their distributions, from logits; float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _TokenLogprob(torch.autograd.Function):
    """log softmax at one target per row, and the entropy; the backward pass keeps one matrix of probabilities."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        normaliser = logits.logsumexp(-1, keepdim=True)
        logprob = (logits.gather(-1, targets.unsqueeze(-1)) - normaliser).squeeze(-1)
        probabilities = (logits - normaliser).exp_()
        entropy = normaliser.squeeze(-1) - torch.einsum("nv,nv->n", probabilities, logits)
        ctx.save_for_backward(probabilities, targets, entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        probabilities, targets, entropy = ctx.saved_tensors
        of_logprob, of_entropy = gradients
        total: Tensor | None = None
        if of_logprob is not None:
            gradient = of_logprob.unsqueeze(-1)
            total = (probabilities * -gradient).scatter_add_(-1, targets.unsqueeze(-1), gradient)
        if of_entropy is not None:
            # dH/dz_i = -p_i (log p_i + H); 0 log 0 is 0.
            slope = torch.xlogy(probabilities, probabilities) + probabilities * entropy.unsqueeze(-1)
            own = -of_entropy.unsqueeze(-1) * slope
            total = own if total is None else total + own
        return total, None


def token_logprob(logits: Tensor, targets: Tensor, temperature: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """logits [N, V], targets int64 [N] -> log-prob [N] and entropy [N] in nats, both with gradient; float32 (float64 stays).

    ``temperature`` [N] divides the logits, as the sampler did; dividing log-probs instead would be another distribution.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    if temperature is not None:
        logits = logits / temperature.unsqueeze(-1)
    logprob, entropy = _TokenLogprob.apply(logits, targets)
    return logprob, entropy
