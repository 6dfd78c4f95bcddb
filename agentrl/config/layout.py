"""How the trainer's ranks share a model and a batch, and which layouts fit which model."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from agentrl.config.algorithm import Section

MOST_RANKS = 4096


class ModelSizes(NamedTuple):
    """What a layout must divide; ``experts``: the MLP is a mixture."""

    layers: int
    heads: int
    kv_heads: int
    ffn: int
    experts: bool = False


class LayoutSettings(Section):
    """Ranks of the trainer: tensor x pipeline x context x data processes. All 1: one process."""

    tensor: int = Field(1, ge=1, le=MOST_RANKS)
    """Ranks that share each matrix; divides heads, key-value heads and the width of the MLP."""
    pipeline: int = Field(1, ge=1, le=MOST_RANKS)
    """Ranks that hold consecutive layers; divides the number of layers."""
    context: int = Field(1, ge=1, le=MOST_RANKS)
    """Ranks that share the tokens of each row, for very long trajectories; rows are then padded instead of packed."""
    data: int = Field(1, ge=1, le=MOST_RANKS)
    """Copies of the model, each with a part of the batch."""
    sequence_parallel: bool = False
    """Norms and residuals hold only this rank's tokens; needs tensor > 1."""
    distributed_optimizer: bool = False
    """Optimizer state and fp32 masters are sharded over the copies of the model; needs data or context > 1."""
    recompute: bool = False
    """Activations of a layer are computed again in the backward pass instead of being kept."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: weights and activations; masters, gradients, log-probs and losses stay fp32."""
    kernels: Literal["torch", "transformer_engine"] = "torch"
    """Layers of plain torch, or those of Transformer Engine, which must be installed and needs a GPU. Only its attention shares
    packed rows between context-parallel ranks."""

    @property
    def ranks(self) -> int:
        """Processes of the trainer."""
        return self.tensor * self.pipeline * self.context * self.data

    def misfits(self, sizes: ModelSizes) -> list[str]:
        """What this layout can't divide: both numbers and the values that would do; what else it lacks. Empty when it fits."""
        wanted = [
            ("tensor", self.tensor, "attention heads", sizes.heads),
            ("tensor", self.tensor, "key-value heads", sizes.kv_heads),
            ("tensor", self.tensor, "MLP columns", sizes.ffn),
            ("pipeline", self.pipeline, "layers", sizes.layers),
        ]
        lacking = []
        if sizes.experts and self.tensor > 1 and not self.sequence_parallel:
            lacking = [
                f"trainer.layout.tensor={self.tensor} with a mixture of experts needs trainer.layout.sequence_parallel=true: "
                "without it each rank would train the router on all tokens again"
            ]
        return lacking + [
            f"trainer.layout.{name} ({ranks}) does not divide the model's {number} {what}: use one of "
            + ", ".join(str(n) for n in range(1, min(number, MOST_RANKS) + 1) if number % n == 0)
            for name, ranks, what, number in wanted
            if number % ranks
        ]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError("trainer.layout.sequence_parallel needs trainer.layout.tensor of 2 or more: it is 1")
        if self.distributed_optimizer and self.data * self.context == 1:
            raise ValueError(
                "trainer.layout.distributed_optimizer shards over copies of the model: it needs trainer.layout.data or "
                "trainer.layout.context of 2 or more"
            )
        return self

    def __str__(self) -> str:
        ways = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context, "data": self.data}
        words = [f"{name} {n}" for name, n in ways.items() if n > 1] or ["one process"]
        words += [
            name.replace("_", " ")
            for name in ("sequence_parallel", "distributed_optimizer", "recompute")
            if getattr(self, name)
        ]
        return ", ".join([*words, self.precision, *(["Transformer Engine"] if self.kernels == "transformer_engine" else [])])
