"""Settings of credit, loss and critic. Presets give the values; see `agentrl.config.presets` for their sources."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of all sections: unknown keys are refused and values are fixed once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CriticConfig(Section):
    """The value model: same backbone, scalar head."""

    learning_rate: float = Field(5e-6, gt=0)
    updates_per_batch: int = Field(2, ge=1)
    """Value updates per batch (K)."""
    warmup_batches: int = Field(10, ge=0)
    """First batches that train the critic alone; the policy version does not change."""
    freeze_attention: bool = True
    gae_lambda: float = Field(1.0, ge=0, le=1)
    value_eval: Literal["before", "after"] = "after"
    """Values for the advantages are read before or after the batch's value updates."""
    clip_grad: float = Field(1.0, gt=0)


class AlgorithmConfig(Section):
    """How a batch of trajectories becomes a policy update."""

    advantage: Literal["turn_gae", "token_gae", "group"] = "turn_gae"
    gamma: float = Field(1.0, ge=0, le=1)
    gae_lambda: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | Literal["length_adaptive"] = "length_adaptive"
    """``length_adaptive``: 1 - 1/(1.5 n), n turns (turn_gae) or action tokens (token_gae)."""
    group_size: int = Field(1, ge=1)
    group_std: bool = False
    """Divide group advantages by the group's standard deviation (ddof 1)."""
    loss: Literal["dis", "ppo_clip"] = "dis"
    ratio_low: float = Field(0.2, gt=0, lt=1)
    """Lower bound of the ratio to the behaviour log-prob (dis: masked at or below; ppo_clip: clipped)."""
    ratio_high: float = Field(4.0, gt=1)
    aggregation: Literal["token_mean", "seq_mean_token_mean"] = "token_mean"
    truncation: Literal["bootstrap", "zero", "mask"] = "bootstrap"
    """Credit at the end of a truncated, ungraded trajectory."""
    critic: CriticConfig | None = CriticConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.advantage == "group" and self.critic is not None:
            raise ValueError("advantage 'group' has no critic: remove algorithm.critic or choose turn_gae or token_gae")
        if self.advantage != "group" and self.critic is None:
            raise ValueError(f"advantage '{self.advantage}' needs a critic")
        if self.advantage == "group" and self.group_size < 2:
            raise ValueError(f"advantage 'group' needs algorithm.group_size of 2 or more, got {self.group_size}")
        if self.advantage == "group" and self.truncation == "bootstrap":
            raise ValueError("truncation 'bootstrap' needs a critic: use 'zero' or 'mask' with advantage 'group'")
        return self
