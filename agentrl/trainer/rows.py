"""Between trajectories and rows of the model: one row per context, and outputs joined back per trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from agentrl.trainer.batch import Batch
from agentrl.trainer.megatron.microbatch import Row


def action_rows(
    batch: Batch, columns: Mapping[str, Sequence[Tensor]], *, with_final: Sequence[bool] | None = None
) -> list[Row]:
    """One row per context, in the order of trajectories and contexts, asking at the action tokens.

    ``columns``: per name one tensor [n] per trajectory. ``with_final``: per trajectory, ask also for the state after its last
    token; columns are 0 there.
    """
    rows: list[Row] = []
    for number, trajectory in enumerate(batch.trajectories):
        start = 0
        for context in trajectory.contexts:
            end = start + len(context.positions)
            positions = context.positions
            own = {name: per_trajectory[number][start:end].float() for name, per_trajectory in columns.items()}
            if with_final is not None and with_final[number] and context is trajectory.contexts[-1]:
                positions = torch.cat([positions, torch.tensor([len(context.tokens)])])
                own = {name: torch.cat([column, torch.zeros(1)]) for name, column in own.items()}
            rows.append(Row(context.tokens, positions, own, trajectory.temperature))
            start = end
    return rows


def join_rows(batch: Batch, outputs: Sequence[Mapping[str, Tensor]], name: str) -> list[Tensor]:
    """The inverse for one output: a tensor per trajectory, contexts in order (and the final state, where asked, last)."""
    per_row = iter(outputs)
    return [torch.cat([next(per_row)[name] for _ in trajectory.contexts]) for trajectory in batch.trajectories]


def owners(batch: Batch, rows: Iterable[int]) -> list[int]:
    """Indices of the trajectories that the given rows belong to, each once."""
    owner_of = [number for number, trajectory in enumerate(batch.trajectories) for _ in trajectory.contexts]
    return sorted({owner_of[row] for row in rows})
