"""The mixture of experts of one layer, in float32 on the CPU: each expert runs once, on the rows that chose it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from agentrl.model.config import Experts


@dataclass(frozen=True, slots=True)
class Mixture:
    """``router`` [hidden, experts]; ``gate_up`` [hidden, 2 width] and ``down`` [width, hidden] of each expert."""

    settings: Experts
    router: torch.Tensor
    gate_up: list[torch.Tensor]
    down: list[torch.Tensor]

    def add_to(self, x: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        """``x`` plus the mixture of ``normed``, both [n, hidden]."""
        weights, chosen = torch.mm(normed, self.router).softmax(-1).topk(self.settings.active, dim=-1)
        if self.settings.renormalised:
            weights = weights / weights.sum(-1, keepdim=True)
        out = x.clone()
        for expert in chosen.unique().tolist():
            rows, place = torch.nonzero(chosen == expert, as_tuple=True)
            gate, up = torch.mm(normed[rows], self.gate_up[expert]).chunk(2, -1)
            out.index_add_(0, rows, torch.mm(F.silu(gate).mul_(up), self.down[expert]) * weights[rows, place, None])
        return out


def mixture(settings: Experts, tensors: Mapping[str, torch.Tensor], at: str, norm: torch.Tensor) -> Mixture:
    """Of the layer whose names start with ``at``; the weight of its norm is folded into what reads the normed rows."""

    def get(name: str) -> torch.Tensor:
        return tensors[f"{at}mlp.{name}.weight"].float()

    gate_up, down = [], []
    for number in range(settings.count):
        own = f"experts.{number}."
        gate_up.append((torch.cat([get(f"{own}gate_proj"), get(f"{own}up_proj")]) * norm).t().contiguous())
        down.append(get(f"{own}down_proj").t().contiguous())
    return Mixture(settings, (get("gate") * norm).t().contiguous(), gate_up, down)
