"""From the module's output at the asked positions to what a loss reads: log-probs and entropy, or values; float32."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from agentrl.algorithm.logprobs import token_logprob
from agentrl.trainer.megatron.microbatch import MicroBatch


def read_policy(output: Tensor, micro: MicroBatch) -> Mapping[str, Tensor]:
    """logits [N, V] -> ``logprob`` [N] of the target at its row's temperature (with gradient), ``entropy`` [N] in nats."""
    scaled = bool((micro.temperature != 1).any())
    logprob, entropy = token_logprob(output, micro.targets, micro.temperature if scaled else None)
    return {"logprob": logprob, "entropy": entropy}


def read_critic(output: Tensor, micro: MicroBatch) -> Mapping[str, Tensor]:
    """head output [N, 1] -> ``value`` [N]."""
    return {"value": output.float().squeeze(-1)}
