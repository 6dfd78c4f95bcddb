"""The policy that a run started from, and the coefficient of the distance to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from agentrl.algorithm.kl import band_coefficient, kl_per_token, ziegler_coefficient
from agentrl.config.algorithm import KLConfig
from agentrl.trainer.batch import Batch
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.trainer.rows import action_rows, join_rows


@dataclass
class Reference:
    """``model`` is read and never stepped; ``coefficient`` belongs to a checkpoint: a controller changes it."""

    model: TrainedModel
    settings: KLConfig
    coefficient: float

    def logprobs(self, batch: Batch) -> list[Tensor]:
        """Per trajectory [n]."""
        return join_rows(batch, self.model.forward(action_rows(batch, {})), "logprob")

    def penalties(self, batch: Batch, reference: Sequence[Tensor]) -> list[Tensor] | None:
        """What is taken from each action token's reward, per trajectory [n]; None when the KL is in the loss.

        Tokens are samples of the policy that acted, so the recorded log-probs stand for the policy.
        """
        if self.settings.place == "loss":
            return None
        return [
            self.coefficient * kl_per_token(t.logp_rollout, own, self.settings.estimator)
            for t, own in zip(batch.trajectories, reference, strict=True)
        ]

    def adapt(self, kl: float, n: int) -> None:
        """Once a step, after it: the controller's answer to the step's mean KL over ``n`` trajectories."""
        config = self.settings
        if config.controller == "ziegler":
            self.coefficient = ziegler_coefficient(self.coefficient, kl=kl, target=config.target, n=n, horizon=config.horizon)
        elif config.controller == "band":
            self.coefficient = band_coefficient(self.coefficient, kl=kl, low=config.low, high=config.high)
