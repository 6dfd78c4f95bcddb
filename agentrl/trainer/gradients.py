"""How the policy's gradient turns from one step to the next."""

from __future__ import annotations

from torch import Tensor

from agentrl.algorithm.metrics import gradient_cosine
from agentrl.trainer.megatron.model import TrainedModel


class GradientMemory:
    """Keeps a copy of the last step's gradient: as much memory as the gradient itself."""

    def __init__(self) -> None:
        self._last: list[Tensor] | None = None

    def compare(self, policy: TrainedModel) -> dict[str, float]:
        """``gradient_cosine`` of the step just taken with the one before; empty after the first, or when one of them is 0.

        Every data-parallel rank holds the whole summed gradient, so no sum over ranks is needed.
        """
        now = [p.main_grad.detach().clone() for p in policy.module.parameters() if getattr(p, "main_grad", None) is not None]
        last, self._last = self._last, now
        cosine = None if last is None else gradient_cosine(last, now).value
        return {} if cosine is None else {"gradient_cosine": cosine}
