"""Value pre-training: a critic learns what trajectories of a run really earned, before its values steer a policy.

A critic that starts from a policy's weights knows nothing of returns, and advantages from it pull the policy anywhere (VC-PPO,
arXiv 2503.01491). Targets are plain returns (lambda 1), so the critic's own first values are in none of them. Some tasks are
held out with all their trajectories, and the fit is measured on those.

Invariants
- one_voice: see `agentrl.trainer.channel`; rank 0 alone reads the store.
- held_out: no trajectory of a held-out task is trained on.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import torch
from torch import Tensor

from agentrl.algorithm.metrics import explained_variance
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.channel import Channel, OneVoice
from agentrl.trainer.credit import Values, assign_credit
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.trainer.rows import action_rows, join_rows
from agentrl.trainer.update import train_critic
from agentrl.types import StoredTrajectory

HELD_OUT = 10
"""One task in so many is held out."""


class Graded(NamedTuple):
    """A stored trajectory, and the task by which it is held out or not."""

    id: UUID
    start_version: int
    task: str


Read = Callable[[Sequence[Graded]], list[StoredTrajectory]]


@dataclass(frozen=True, slots=True)
class Progress:
    """After one update. ``explained_variance``: of its batch before the update; None where returns are all alike."""

    update: int
    updates: int
    value_loss: float
    explained_variance: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of it. ``before`` and ``after``: explained variance on held-out tasks, None where it is not defined."""

    trained: int
    held_out: int
    refused: int
    """Trajectories that can't be trained on, whatever the reason."""
    before: float | None
    after: float | None


def settings_for_returns(settings: AlgorithmConfig) -> AlgorithmConfig:
    """The same algorithm whose value targets are plain returns, with one update a batch.

    A trajectory that was cut off ungraded has no return: it is left out where the algorithm would bootstrap.
    """
    assert settings.critic is not None
    plain = {"gae_lambda": 1.0, "updates_per_batch": 1, "value_clip": None, "value_eval": "before"}
    changes: dict[str, Any] = {"critic": settings.critic.model_copy(update=plain)}
    if settings.truncation == "bootstrap":
        changes["truncation"] = "mask"
    return settings.model_copy(update=changes)


def held_out(keys: Sequence[Graded]) -> tuple[list[Graded], list[Graded]]:
    """(trained on, held out), by task and not by trajectory: two attempts at one task tell of each other."""
    apart = {key.task for key in keys if zlib.crc32(key.task.encode()) % HELD_OUT == 0}
    if len(apart) == len({key.task for key in keys}):
        apart = set()
    return [key for key in keys if key.task not in apart], [key for key in keys if key.task in apart]


@dataclass
class ValuePretraining(OneVoice):
    """On rank 0: call `run` and `weights`, then `dismiss`. On the others: `follow`."""

    critic: TrainedModel
    settings: AlgorithmConfig
    """As `settings_for_returns` gives them."""
    channel: Channel

    def run(
        self,
        keys: Sequence[Graded],
        read: Read,
        *,
        epochs: int,
        batch_size: int,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Fit:
        """Train on all ``keys`` but the held-out ones, ``epochs`` times, in an order that ``seed`` fixes."""
        own, apart = held_out(keys)
        refused: set[UUID] = set()
        before = self._explained(apart, read, batch_size, refused)
        order = random.Random(seed)
        updates = epochs * -(-len(own) // batch_size)
        done = 0
        for _ in range(epochs):
            for batch in self._batches(order.sample(own, len(own)), read, batch_size, refused):
                done += 1
                metrics = self._everywhere(self._fit, batch)
                if on_progress is not None and "value_loss" in metrics:
                    on_progress(Progress(done, updates, metrics["value_loss"], metrics.get("explained_variance")))
        after = self._explained(apart, read, batch_size, refused)
        n_apart, n_own = (sum(key.id not in refused for key in part) for part in (apart, own))
        return Fit(n_own, n_apart, len(refused), before, after)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the critic under its Hugging Face name, the head included."""
        with self._together(self._weights):
            yield from self.critic.export()

    def _batches(self, keys: Sequence[Graded], read: Read, size: int, refused: set[UUID]) -> Iterator[Batch]:
        for at in range(0, len(keys), size):
            batch = build_batch(read(keys[at : at + size]), max_context=int(self.critic.hf["max_position_embeddings"]))
            refused.update(identity for identity, _ in batch.rejected)
            if batch.trajectories:
                yield batch

    def _explained(self, keys: Sequence[Graded], read: Read, size: int, refused: set[UUID]) -> float | None:
        parts = [self._everywhere(self._compare, batch) for batch in self._batches(keys, read, size, refused)]
        if not parts:
            return None
        returns, values, masks = (torch.cat(column) for column in zip(*parts, strict=True))
        return explained_variance(returns, values, masks)

    def _fit(self, batch: Batch) -> Mapping[str, float]:
        metrics: dict[str, float] = {}
        train_critic(batch, self.critic, self.settings, None, metrics)
        return metrics

    def _compare(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, values and where values are trained, over all action tokens of the batch."""
        values = join_rows(batch, self.critic.forward(action_rows(batch, {})), "value")
        credit = assign_credit(batch, [Values(v, 0.0) for v in values], self.settings)
        assert credit.returns is not None
        assert credit.value_weights is not None
        return torch.cat(credit.returns), torch.cat(values), torch.cat(credit.value_weights.per_token) > 0

    def _weights(self) -> None:
        for _ in self.critic.export():  # each is gathered when it is taken
            pass
