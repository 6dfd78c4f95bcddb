"""The process that pre-trains a critic: models and ranks as the trainer's, trajectories of a run, a folder as the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.config.run import RunConfig
from agentrl.errors import UsageError
from agentrl.model.model_dir import open_model_dir
from agentrl.monitor.terminal import say
from agentrl.trainer.channel import Channel
from agentrl.trainer.megatron.build import join_world
from agentrl.trainer.models import build_critic
from agentrl.trainer.value_pretraining import Fit, Graded, Progress, Read, ValuePretraining, settings_for_returns
from agentrl.weights.model_folder import require_unused, write_critic

TELL_S = 10.0


@dataclass(frozen=True, slots=True)
class Pretraining:
    """What is asked for. ``config``: of the run whose trajectories they are, with the algorithm that the critic is for."""

    config: RunConfig
    model_dir: Path
    epochs: int
    batch_size: int
    target: Path
    origin: dict[str, Any]
    """Where the critic comes from, for its folder."""


def require_possible(asked: Pretraining, keys: Sequence[Graded]) -> None:
    """`UsageError` when there is nothing to learn from, no model, or the folder is in use."""
    require_unused(asked.target)
    if not keys:
        raise UsageError("No trajectory of this run has ended with a verdict: there is nothing that a critic could learn from.")
    open_model_dir(asked.model_dir)


def pretrain_critic(asked: Pretraining, keys: Sequence[Graded], read: Read) -> Fit:
    """Pre-train and write the folder; on rank 0. `UsageError` when it is not possible."""
    require_possible(asked, keys)
    join_world()
    channel = Channel()
    channel.tell((asked.config, asked.model_dir))
    work = _build(asked.config, asked.model_dir, channel)
    try:
        fit = work.run(
            keys,
            read,
            epochs=asked.epochs,
            batch_size=asked.batch_size,
            seed=asked.config.seed,
            on_progress=_Console().tell,
        )
        if not fit.trained:
            raise UsageError(f"None of the {len(keys)} trajectories can be trained on: `agentrl show ID` prints one.")
        origin = {**asked.origin, "trajectories": fit.trained, "explained_variance": fit.after}
        write_critic(
            asked.model_dir, work.weights(), asked.target, origin, max_bytes=int(asked.config.trainer.max_shard_gb * 1e9)
        )
        return fit
    finally:
        work.dismiss()


def follow_pretraining() -> None:
    """What every rank but the first does."""
    join_world()
    channel = Channel()
    config, model_dir = channel.hear()
    _build(config, model_dir, channel).follow()


def _build(config: RunConfig, model_dir: Path, channel: Channel) -> ValuePretraining:
    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    torch.manual_seed(config.seed)
    critic = build_critic(config, open_model_dir(model_dir))
    return ValuePretraining(critic, settings_for_returns(config.algorithm), channel)


class _Console:
    """A line every `TELL_S`, and the last one."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, progress: Progress) -> None:
        if progress.update < progress.updates and time.monotonic() - self._told < TELL_S:
            return
        self._told = time.monotonic()
        explained = "-" if progress.explained_variance is None else f"{progress.explained_variance:.2f}"
        say(
            f"  update {progress.update}/{progress.updates}: value loss {progress.value_loss:.4f}, "
            f"explained variance of its batch {explained}"
        )
