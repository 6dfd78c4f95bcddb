"""A trained model: module, gradient buffers and optimizer, for the policy and for the critic alike.

- **partition_invariance**: losses are sums divided by one denominator of the whole batch, gradients are summed over ranks; so
  the result does not depend on how rows, layers and matrices are spread over ranks and micro-batches.
- **non_finite_stops**: a non-finite loss or gradient leaves weights and optimizer as they were and raises `NonFiniteStep`.
- **every_rank_joins**: each rank is given the whole batch and picks its rows; one without rows takes part in all collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from agentrl.config.layout import LayoutSettings
from agentrl.errors import RunFailed
from agentrl.model.config import identity
from agentrl.trainer.megatron.attention import Packing
from agentrl.trainer.megatron.build import Role, build_module
from agentrl.trainer.megatron.cpu import megatron_device, training_device
from agentrl.trainer.megatron.mapping import export_weights, load_weights
from agentrl.trainer.megatron.microbatch import MicroBatch, Row, Shard, collate, plan
from agentrl.trainer.megatron.moments import take_moments
from agentrl.trainer.megatron.sharded_files import Writing, read, start_writing
from agentrl.trainer.megatron.spread import sum_over_copies, whole_positions

Outputs = Mapping[str, Tensor]
LossFunction = Callable[[Outputs, Mapping[str, Tensor]], Tensor]
"""(outputs [N] with gradient, columns [N]) -> the micro-batch's share of the numerator: a sum over its positions."""


_Added = tuple[float, list[Outputs], list[tuple[Row, LossFunction]]]
"""What a step was made of: the loss, and per row its outputs, itself and its loss."""


class NonFiniteStep(RunFailed):
    """A loss or gradient was NaN or infinite; weights are unchanged. ``args[1]``: rows with a non-finite output or loss."""

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
    """See the module's docstring.

    ``max_tokens`` bounds the tokens that one rank has of a micro-batch; the ranks of ``layout`` make the model together.
    """

    def __init__(
        self,
        hf: Mapping[str, Any],
        role: Role,
        weights: Iterable[tuple[str, Tensor]],
        optimizer: OptimizerSettings,
        *,
        layout: LayoutSettings | None = None,
        freeze_attention: bool = False,
        max_tokens: int = 4096,
    ) -> None:
        self.hf = dict(hf)
        self.role: Role = role
        self.layout = layout or LayoutSettings()
        self.max_tokens = max_tokens
        self.module = build_module(hf, role, self.layout, freeze_attention=freeze_attention)
        load_weights(self.module, weights, vocabulary=hf["vocab_size"])
        self._names = ("logprob", "entropy") if role == "policy" else ("value",)
        self._current: MicroBatch | None = None
        self._added: _Added = (0.0, [], [])
        with megatron_device():
            self._ddp, self._optimizer = _wrap(self.module, optimizer, self.layout)

    def forward(self, rows: Sequence[Row]) -> list[Outputs]:
        """Outputs [n] per row, float32 on the CPU: ``logprob`` and ``entropy`` of a policy, ``value`` of a critic."""
        collected: list[tuple[MicroBatch, Outputs]] = []

        def read(output: Tensor, *, non_loss_data: bool) -> None:
            micro = self._micro()
            collected.append((micro, self._outputs(output, micro)))

        with torch.no_grad():
            self._run(rows, read, train=False)
        return self._gather(rows, collected)

    def step(self, rows: Sequence[Row], loss: LossFunction, *, denominator: float, learning_rate: float) -> Step:
        """One optimizer step on sum(loss) / ``denominator`` over all rows, accumulated over micro-batches and ranks.

        A denominator of 0 (nothing to train on anywhere) skips the step on every rank. Raises `NonFiniteStep`.
        """
        if not denominator:
            return Step(loss=0.0, grad_norm=0.0, outputs=self.forward(rows), skipped=True)
        self.begin_step()
        total, outputs = self._backward(rows, loss, denominator)
        return self._update((total, outputs, [(row, loss) for row in rows]), learning_rate)

    def begin_step(self) -> None:
        """Forget all gradients: a new step begins, whose rows may come in parts."""
        self._ddp.zero_grad_buffer()
        with megatron_device():
            self._optimizer.zero_grad()
        self._added = (0.0, [], [])

    def add_rows(self, rows: Sequence[Row], loss: LossFunction) -> list[Outputs]:
        """Add the gradient of sum(loss) over ``rows`` to the step that has begun; the outputs. Weights stay as they are."""
        self.module.config.finalize_model_grads_func = None  # ranks are summed once, at the end
        try:
            total, outputs = self._backward(rows, loss, 1.0)
        finally:
            self.module.config.finalize_model_grads_func = _finalize
        before, others, asked = self._added
        self._added = (before + total, [*others, *outputs], [*asked, *((row, loss) for row in rows)])
        return outputs

    def finish_step(self, *, denominator: float, learning_rate: float) -> Step:
        """The optimizer step on all that was added, as `step` makes it of the same rows at once.

        Sums are divided by ``denominator`` here, since it is known only once all rows are. Raises `NonFiniteStep`.
        """
        total, outputs, asked = self._added
        self._added = (0.0, [], [])
        if not denominator:
            return Step(loss=0.0, grad_norm=0.0, outputs=outputs, skipped=True)
        with megatron_device():
            _finalize([self._ddp])
        self._ddp.scale_gradients(1 / denominator)
        return self._update((total / denominator, outputs, asked), learning_rate)

    def _backward(self, rows: Sequence[Row], loss: LossFunction, denominator: float) -> tuple[float, list[Outputs]]:
        """Add the gradient of sum(loss) / ``denominator``; that sum over all ranks, and the outputs per row."""
        collected: list[tuple[MicroBatch, Outputs]] = []
        losses: list[Tensor] = []

        def read(output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            micro = self._micro()
            outputs = self._outputs(output, micro)
            share = loss(outputs, micro.columns) / denominator if micro.rows else output.sum() * 0
            collected.append((micro, {name: tensor.detach() for name, tensor in outputs.items()}))
            losses.append(share.detach())
            return share, torch.zeros((), dtype=torch.int32, device=share.device), {}

        self._run(rows, read, train=True)
        own = torch.stack(losses).double().sum() if losses else torch.zeros((), dtype=torch.float64, device=training_device())
        total = sum_over_copies(own)
        return float(total), self._gather(rows, collected)

    def _update(self, added: _Added, learning_rate: float) -> Step:
        total, outputs, _ = added
        with megatron_device():
            grad_norm = self._finite_grad_norm(added)
            self._clip(grad_norm)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
                # Megatron leaves both to a scheduler; wd_mult is 0 for vectors.
                group["weight_decay"] = self._optimizer.config.weight_decay * group["wd_mult"]
            self._optimizer.step_with_ready_grads()
        return Step(loss=total, grad_norm=grad_norm, outputs=outputs)

    def gradient_shares(self) -> list[tuple[list[Tensor], dist.ProcessGroup | None]]:
        """Copies of what this rank holds of the last step's gradient, clipped, and the ranks (None: all) whose shares together
        hold each of its elements once."""
        return [
            ([own.detach().clone() for own in part.get_main_grads_for_grad_norm()], part.get_grad_stats_parallel_group())
            for part in getattr(self._optimizer, "chained_optimizers", [self._optimizer])
        ]

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, copy of the whole tensor) of every weight; all ranks must take every item."""
        return export_weights(self.module, vocabulary=self.hf["vocab_size"])

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the weights; the optimizer's state stays. Raises `WeightsCorrupt` and then changes nothing."""
        load_weights(self.module, weights, vocabulary=self.hf["vocab_size"])
        with megatron_device():
            self._optimizer.reload_model_params()

    @property
    def updates(self) -> int:
        """Optimizer steps taken, those before a resume included."""
        return take_moments(self.module, self._optimizer)[1]

    def describe(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to be of this model, whatever its layout."""
        return {"role": self.role, **identity(self.hf)}

    def start_writing(self, folder: Path) -> Writing:
        """Copy weights and optimizer state and write them to ``folder`` in the background; all ranks call it."""
        return start_writing(self.module, self._optimizer, folder)

    def read(self, folder: Path) -> None:
        """Continue from what `start_writing` wrote, at whatever layout; at the same one bit for bit."""
        read(self.module, self._optimizer, folder)

    def _run(self, rows: Sequence[Row], read: Callable[..., Any], *, train: bool) -> None:
        micros = self._micro_batches(rows)

        def forward_step(micros: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            micro = self._current = next(micros)
            self.module.rotary_pos_emb.places = micro.places
            if self.module.post_process:
                self.module.output_layer.micro = micro
            packing = None if micro.lengths is None else Packing(lengths=micro.lengths)
            return model(micro.token_ids, None, None, packed_seq_params=packing), read

        with megatron_device():
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iter(micros),
                model=[self._ddp],
                num_microbatches=len(micros),
                seq_length=1,  # of no consequence: stages tell each other their shapes
                micro_batch_size=1,
                forward_only=not train,
                collect_non_loss_data=not train,
            )
        self._current = None

    def _micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        layout = self.layout
        packs = layout.kernels == "transformer_engine"  # of rows that are shared between ranks only its attention takes lines
        batches = plan(
            rows,
            max_tokens=self.max_tokens * layout.context,
            rank=parallel_state.get_data_parallel_rank(),
            ranks=parallel_state.get_data_parallel_world_size(),
            padded=layout.context > 1 and not packs,
        )
        shard = Shard(
            parallel_state.get_context_parallel_rank(), layout.context, layout.tensor if layout.sequence_parallel else 1, packs
        )
        return [collate(rows, batch, training_device(), shard) for batch in batches]

    def _micro(self) -> MicroBatch:
        assert self._current is not None
        return self._current

    def _outputs(self, output: Tensor, micro: MicroBatch) -> Outputs:
        """From the head's [k, M] to named outputs at all N positions."""
        return {
            name: whole_positions(column, micro.owned, micro.n_positions)
            for name, column in zip(self._names, output, strict=True)
        }

    def _finite_grad_norm(self, added: _Added) -> float:
        loss, outputs, asked = added
        self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return grad_norm
        rows = [i for i, (row, own) in enumerate(zip(asked, outputs, strict=True)) if not _finite(*row, own)]
        raise NonFiniteStep(
            f"{self.role}: loss {loss}, gradient norm {grad_norm}; no update. Rows with a non-finite output or loss: "
            f"{rows or 'none, so it is their sum'}",
            rows,
        )

    def _clip(self, grad_norm: float) -> None:
        parameters = self._optimizer.get_parameters()
        if parameters:
            clip_grad_by_total_norm_fp32(parameters, max_norm=self._optimizer.config.clip_grad, total_norm=grad_norm)

    def _gather(self, rows: Sequence[Row], collected: Sequence[tuple[MicroBatch, Outputs]]) -> list[Outputs]:
        # Each rank fills in its rows, zero elsewhere; the sum over the copies of the model is the whole.
        lengths = [len(row.positions) for row in rows]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        whole = torch.zeros(len(self._names), starts[-1], device=training_device())
        for micro, outputs in collected:
            if not micro.rows:
                continue
            target = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in micro.rows]).to(whole.device)
            whole[:, target] = torch.stack([outputs[name] for name in self._names])
        parts = sum_over_copies(whole).split(lengths, dim=1)
        return [dict(zip(self._names, part, strict=True)) for part in parts]


def _finite(row: Row, loss: LossFunction, outputs: Outputs) -> bool:
    return all(bool(own.isfinite().all()) for own in (*outputs.values(), loss(outputs, row.columns)))


def _wrap(
    module: GPTModel, settings: OptimizerSettings, layout: LayoutSettings
) -> tuple[DistributedDataParallel, MegatronOptimizer]:
    bf16 = layout.precision == "bf16"
    ddp = DistributedDataParallel(
        module.config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=layout.distributed_optimizer),
        Float16Module(module.config, module) if bf16 else module,
    )
    config = OptimizerConfig(
        optimizer="adam",
        lr=1.0,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.eps,
        clip_grad=settings.clip_grad,
        use_distributed_optimizer=layout.distributed_optimizer,
        bf16=bf16,
        params_dtype=module.config.params_dtype,
    )
    optimizer = get_megatron_optimizer(config, [ddp])
    module.config.grad_scale_func = optimizer.scale_loss
    module.config.finalize_model_grads_func = _finalize
    return ddp, optimizer


def _finalize(model: list[torch.nn.Module], num_tokens: Tensor | None = None, **groups: Any) -> None:
    # Losses arrive divided by the global denominator, so no further division by a token count.
    finalize_model_grads(model, None, **groups)
