"""A trained model: module, gradient buffers and optimizer, for the policy and for the critic alike.

- **partition_invariance**: losses are sums divided by one denominator of the whole batch, gradients are summed over ranks; so
  the result does not depend on how rows are spread over ranks and micro-batches.
- **non_finite_stops**: a non-finite loss or gradient leaves weights and optimizer as they were and raises `NonFiniteStep`.
- **every_rank_joins**: each rank is given the whole batch and picks its rows; one without rows takes part in all collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from agentrl.errors import RunFailed, UsageError
from agentrl.trainer.megatron.build import Role, build_module
from agentrl.trainer.megatron.cpu import megatron_device, training_device
from agentrl.trainer.megatron.mapping import export_weights, load_weights
from agentrl.trainer.megatron.microbatch import MicroBatch, Row, collate, plan
from agentrl.trainer.megatron.readout import read_critic, read_policy

Outputs = Mapping[str, Tensor]
LossFunction = Callable[[Outputs, Mapping[str, Tensor]], Tensor]
"""(outputs [N] with gradient, columns [N]) -> the micro-batch's share of the numerator: a sum over its positions."""


class NonFiniteStep(RunFailed):
    """A loss or gradient was NaN or infinite; weights are unchanged. ``args[1]``: rows with non-finite outputs."""

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(self.args[1])


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW in fp32; weight decay spares vectors (norms, biases)."""

    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    """Largest global gradient norm."""
    distributed: bool = False
    """Shard optimizer state over data-parallel ranks."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step. ``outputs``: per row, what the model gave before the update (all ranks have all rows).

    ``grad_norm`` is before clipping. ``skipped``: the batch had nothing to train on, so nothing was updated.
    """

    loss: float
    grad_norm: float
    outputs: Sequence[Outputs]
    skipped: bool = False


class TrainedModel:
    """See the module's docstring. ``max_tokens`` bounds the padded tokens of a micro-batch."""

    def __init__(
        self,
        hf: Mapping[str, Any],
        role: Role,
        weights: Iterable[tuple[str, Tensor]],
        optimizer: OptimizerSettings,
        *,
        freeze_attention: bool = False,
        max_tokens: int = 4096,
    ) -> None:
        self.hf = dict(hf)
        self.role: Role = role
        self.max_tokens = max_tokens
        self.module = build_module(hf, role, freeze_attention=freeze_attention)
        load_weights(self.module, weights)
        self.module.output_layer.register_forward_pre_hook(self._select_positions)
        self._read = read_policy if role == "policy" else read_critic
        self._current: MicroBatch | None = None
        with megatron_device():
            self._ddp, self._optimizer = _wrap(self.module, optimizer)

    def forward(self, rows: Sequence[Row]) -> list[Outputs]:
        """Outputs [n] per row, float32 on the CPU: ``logprob`` and ``entropy`` of a policy, ``value`` of a critic."""
        collected: list[tuple[MicroBatch, Outputs]] = []

        def read(output: Tensor, *, non_loss_data: bool) -> None:
            micro = self._micro()
            collected.append((micro, self._read(output.squeeze(0), micro)))

        with torch.no_grad():
            self._run(rows, read, train=False)
        return self._gather(rows, collected)

    def step(self, rows: Sequence[Row], loss: LossFunction, *, denominator: float, learning_rate: float) -> Step:
        """One optimizer step on sum(loss) / ``denominator`` over all rows, accumulated over micro-batches and ranks.

        A denominator of 0 (nothing to train on anywhere) skips the step on every rank. Raises `NonFiniteStep`.
        """
        if not denominator:
            return Step(loss=0.0, grad_norm=0.0, outputs=self.forward(rows), skipped=True)
        collected: list[tuple[MicroBatch, Outputs]] = []
        losses: list[Tensor] = []

        def read(output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            micro = self._micro()
            outputs = self._read(output.squeeze(0), micro)
            share = loss(outputs, micro.columns) / denominator if micro.rows else output.sum() * 0
            collected.append((micro, {name: tensor.detach() for name, tensor in outputs.items()}))
            losses.append(share.detach())
            return share, torch.zeros((), dtype=torch.int32, device=share.device), {}

        self._ddp.zero_grad_buffer()
        with megatron_device():
            self._optimizer.zero_grad()
        self._run(rows, read, train=True)
        total = self._sum_over_ranks(torch.stack(losses).double().sum())
        outputs = self._gather(rows, collected)
        with megatron_device():
            grad_norm = self._finite_grad_norm(float(total), outputs)
            self._clip(grad_norm)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
                # Megatron leaves both to a scheduler; wd_mult is 0 for vectors.
                group["weight_decay"] = self._optimizer.config.weight_decay * group["wd_mult"]
            self._optimizer.step_with_ready_grads()
        return Step(loss=float(total), grad_norm=grad_norm, outputs=outputs)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, copy) of every weight."""
        return export_weights(self.module)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the weights; the optimizer's state stays. Raises `WeightsCorrupt` and then changes nothing."""
        load_weights(self.module, weights)
        with megatron_device():
            self._optimizer.reload_model_params()

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state as plain torch objects, for one checkpoint file; not a copy.

        Raises `UsageError` for a distributed optimizer: each rank holds a shard of its state, which one file can't carry.
        """
        if self._optimizer.config.use_distributed_optimizer:
            raise UsageError("a distributed optimizer can't be saved to one file: switch optimizer sharding off")
        with megatron_device():
            return {"module": dict(self.module.named_parameters()), "optimizer": self._optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`: training continues bit for bit."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(state["module"][name])
        with megatron_device():
            self._optimizer.load_state_dict(state["optimizer"])

    def _run(self, rows: Sequence[Row], read: Callable[..., Any], *, train: bool) -> None:
        device = training_device()
        batches = plan(
            rows,
            max_tokens=self.max_tokens,
            rank=parallel_state.get_data_parallel_rank(),
            ranks=parallel_state.get_data_parallel_world_size(),
        )
        micros = [collate(rows, batch, device) for batch in batches]

        def forward_step(micros: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            micro = self._current = next(micros)
            places = torch.arange(micro.token_ids.shape[1], device=device).expand_as(micro.token_ids)
            return model(micro.token_ids, places, None), read

        with megatron_device():
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iter(micros),
                model=[self._ddp],
                num_microbatches=len(micros),
                seq_length=1,
                micro_batch_size=1,
                forward_only=not train,
                collect_non_loss_data=not train,
            )
        self._current = None

    def _micro(self) -> MicroBatch:
        assert self._current is not None
        return self._current

    def _select_positions(self, layer: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # Logits exist only where they are asked for: [s, b, h] -> [N, 1, h].
        hidden: Tensor = inputs[0]
        return (hidden.flatten(0, 1)[self._micro().source].unsqueeze(1), *inputs[1:])

    def _finite_grad_norm(self, loss: float, outputs: Sequence[Outputs]) -> float:
        self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return grad_norm
        rows = [i for i, row in enumerate(outputs) if not all(bool(t.isfinite().all()) for t in row.values())]
        raise NonFiniteStep(
            f"{self.role}: loss {loss}, gradient norm {grad_norm}; no update. Rows with non-finite outputs: {rows or 'none'}",
            rows,
        )

    def _clip(self, grad_norm: float) -> None:
        parameters = self._optimizer.get_parameters()
        if parameters:
            clip_grad_by_total_norm_fp32(parameters, max_norm=self._optimizer.config.clip_grad, total_norm=grad_norm)

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        if parallel_state.get_data_parallel_world_size() > 1:
            dist.all_reduce(value, group=parallel_state.get_data_parallel_group())
        return value.cpu()

    def _gather(self, rows: Sequence[Row], collected: Sequence[tuple[MicroBatch, Outputs]]) -> list[Outputs]:
        # Each rank fills in its rows, zero elsewhere; the sum over ranks is the whole.
        lengths = [len(row.positions) for row in rows]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        names = list(collected[0][1])
        whole = torch.zeros(len(names), starts[-1], device=training_device())
        for micro, outputs in collected:
            if not micro.rows:
                continue
            target = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in micro.rows]).to(whole.device)
            whole[:, target] = torch.stack([outputs[name] for name in names])
        whole = self._sum_over_ranks(whole)
        parts = whole.split(lengths, dim=1)
        return [dict(zip(names, part, strict=True)) for part in parts]


def _wrap(module: GPTModel, settings: OptimizerSettings) -> tuple[DistributedDataParallel, MegatronOptimizer]:
    ddp = DistributedDataParallel(
        module.config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=settings.distributed),
        module,
    )
    config = OptimizerConfig(
        optimizer="adam",
        lr=1.0,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.eps,
        clip_grad=settings.clip_grad,
        use_distributed_optimizer=settings.distributed,
        bf16=False,
    )
    optimizer = get_megatron_optimizer(config, [ddp])
    module.config.grad_scale_func = optimizer.scale_loss
    module.config.finalize_model_grads_func = _finalize
    return ddp, optimizer


def _finalize(model: list[torch.nn.Module], num_tokens: Tensor | None = None, **groups: Any) -> None:
    # Losses arrive divided by the global denominator, so no further division by a token count.
    finalize_model_grads(model, None, **groups)
