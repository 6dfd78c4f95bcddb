"""Drawing tokens: by inverse CDF from a request's own uniforms, so that a draw does not depend on who shares the batch."""

from __future__ import annotations

import numpy as np
import torch

from agentrl.errors import UsageError
from agentrl.types import Sampling


def check_sampling(sampling: Sampling) -> None:
    """`UsageError` for what can't be replayed exactly by a trainer."""
    if sampling.top_p < 1.0 or sampling.top_k > 0:
        raise UsageError(
            f"top_p={sampling.top_p}, top_k={sampling.top_k}: engines sample from the whole distribution, "
            "because the kept set of a cut one can't be replayed by the trainer; use top_p = 1 and top_k = 0"
        )
    if not 0.0 <= sampling.temperature < float("inf"):
        raise UsageError(f"temperature {sampling.temperature} is not a finite number >= 0")


def uniforms(seed: int, n: int) -> np.ndarray:
    """float64 [n] in [0, 1), a function of the seed alone; a longer draw begins with the shorter one."""
    return np.random.Generator(np.random.PCG64(seed)).random(n)


@torch.inference_mode()
def draw(logits: torch.Tensor, temperatures: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int64 [n] and their log-probs float32 [n] from float32 logits [n, vocabulary].

    ``temperatures`` float32 [n]: the log-prob is of ``softmax(logits / temperature)``; 0 takes the most likely token and
    the log-prob of ``softmax(logits)``. ``u`` float64 [n] in [0, 1). A row with a NaN gets a log-prob that is not finite.
    """
    greedy = temperatures == 0.0
    if not (temperatures == 1.0).all():
        logits = logits / torch.from_numpy(np.where(greedy, np.float32(1), temperatures))[:, None]
    logprobs = torch.log_softmax(logits, -1)
    cdf = logprobs.exp().cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    # Below the total, so that the first entry above the target exists and has a probability above 0.
    target = torch.minimum(torch.from_numpy(u)[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cdf, target, right=True).clamp_(max=logits.shape[1] - 1)
    if greedy.any():
        tokens = torch.where(torch.from_numpy(greedy)[:, None], logits.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0].numpy(), logprobs.gather(1, tokens)[:, 0].numpy()
