"""Adam's state of each parameter as a tensor of the parameter's shape, whichever of megatron's optimizers holds it.

The fp32 optimizer keeps it beside the parameter, the bf16 one beside an fp32 master, the distributed one in flat pieces spread
over the copies of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from agentrl.errors import NotReadyError
from agentrl.trainer.megatron.cpu import training_device

MOMENTS = ("master", "exp_avg", "exp_avg_sq")


class Moments(NamedTuple):
    """Of one trained parameter; float32, in its shape. ``master``: the weight as the optimizer has it."""

    parameter: torch.nn.Parameter
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class _Held(NamedTuple):
    """What this rank holds of a parameter: the optimizer's own tensor and which flat elements it stands for."""

    adam: torch.optim.AdamW
    main: Tensor
    elements: slice


def take_moments(module: GPTModel, optimizer: MegatronOptimizer) -> tuple[dict[str, Moments], int]:
    """By parameter name, and the number of steps taken; before the first all moments are 0. All ranks must call it."""
    found: dict[str, Moments] = {}
    step = 0.0
    for name, parameter, held in _trained(module, optimizer):
        whole = [torch.zeros(parameter.shape, device=parameter.device) for _ in MOMENTS]
        if held is not None:
            state = held.adam.state.get(held.main, {})
            step = max(step, float(state.get("step", 0.0)))
            for target, piece in zip(whole, (held.main, state.get("exp_avg"), state.get("exp_avg_sq")), strict=True):
                if piece is not None:
                    target.view(-1)[held.elements] = piece.detach().flatten().float()
        if optimizer.config.use_distributed_optimizer:
            for target in whole:
                dist.all_reduce(target, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        found[name] = Moments(parameter, *whole)
    steps = torch.tensor(step, device=training_device())
    if dist.get_world_size() > 1:
        dist.all_reduce(steps, dist.ReduceOp.MAX)
    return found, int(steps)


@torch.no_grad()
def put_moments(module: GPTModel, optimizer: MegatronOptimizer, moments: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
    """The inverse; ``moments``: each of `MOMENTS` -> parameter name -> tensor in the parameter's shape."""
    for name, _, held in _trained(module, optimizer):
        if held is None:
            continue
        own = {kind: moments[kind][name].view(-1)[held.elements].view(held.main.shape).to(held.main.device) for kind in MOMENTS}
        held.main.copy_(own.pop("master"))
        kept = {kind: tensor.to(held.main.dtype).clone() for kind, tensor in own.items()}
        held.adam.state[held.main] = {"step": torch.tensor(float(step)), **kept}


def _trained(module: GPTModel, optimizer: MegatronOptimizer) -> Iterator[tuple[str, torch.nn.Parameter, _Held | None]]:
    parts = list(getattr(optimizer, "chained_optimizers", [optimizer]))
    for part in parts:
        if not isinstance(part.optimizer, torch.optim.AdamW):
            raise NotReadyError(
                f"Checkpoints know torch's AdamW, megatron-core chose {type(part.optimizer).__module__}: uninstall Apex and "
                "Transformer Engine from this environment."
            )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter, next((held for part in parts if (held := _held(part, parameter))), None)


def _held(part: MegatronOptimizer, parameter: torch.nn.Parameter) -> _Held | None:
    adam = part.optimizer
    if isinstance(part, DistributedOptimizer):
        if parameter not in part.model_param_group_index_map:
            return None
        group, place = part.model_param_group_index_map[parameter]
        piece = part._get_model_param_range_map(parameter)["param"]
        return _Held(adam, adam.param_groups[group]["params"][place], slice(piece.start, piece.end))
    main = getattr(parameter, "main_param", parameter)
    mine = any(main is candidate for group in adam.param_groups for candidate in group["params"])
    return _Held(adam, main, slice(None)) if mine else None
