"""The models of a run on all of the trainer's ranks.

Invariants
- one_voice: see `agentrl.trainer.channel`; only rank 0 knows the store.
- same_end: what stops an operation for what the data is (a NaN) stops it on every rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.batch import Batch
from agentrl.trainer.channel import Channel, OneVoice
from agentrl.trainer.checkpointing import Saving, load_checkpoint, read_progress, start_saving
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import Outputs, TrainedModel
from agentrl.trainer.pipelined import PipelinedUpdate
from agentrl.trainer.update import Companions, UpdateResult, train_on


@dataclass
class Team(OneVoice):
    """On rank 0: call the operations. On the others: `follow`."""

    policy: TrainedModel
    critic: TrainedModel | None
    channel: Channel
    companions: Companions = field(default_factory=Companions)
    _saving: Saving | None = field(default=None, init=False)
    _update: PipelinedUpdate | None = field(default=None, init=False)

    @property
    def max_context(self) -> int:
        """The longest context that the policy can read, in tokens."""
        return int(self.policy.hf["max_position_embeddings"])

    @property
    def kl_coefficient(self) -> float | None:
        """Of the distance to the reference policy; None when nothing reads one."""
        return self.companions.reference.coefficient if self.companions.reference else None

    def forward(self, rows: Sequence[Row]) -> Sequence[Outputs]:
        """The policy's outputs, see `TrainedModel.forward`."""
        outputs: Sequence[Outputs] = self._everywhere(self._forward, rows)
        return outputs

    def train(
        self, batch: Batch, settings: AlgorithmConfig, policy_lr: float, update_policy: bool, token_lags: Sequence[Tensor]
    ) -> UpdateResult:
        """See `agentrl.trainer.update.train_on`."""
        result: UpdateResult = self._everywhere(self._train, batch, settings, policy_lr, update_policy, list(token_lags))
        return result

    def begin_parts(self, settings: AlgorithmConfig, update_policy: bool) -> None:
        """Begin an update whose batch arrives in parts, see `agentrl.trainer.pipelined`; an unfinished one is forgotten."""
        self._everywhere(self._begin_parts, settings, update_policy)

    def add_part(self, batch: Batch, token_lags: Sequence[Tensor]) -> None:
        """See `PipelinedUpdate.add`."""
        self._everywhere(self._add_part, batch, list(token_lags))

    def finish_parts(self, policy_lr: float) -> UpdateResult:
        """See `PipelinedUpdate.finish`."""
        result: UpdateResult = self._everywhere(self._finish_parts, policy_lr)
        return result

    def weights(self) -> list[tuple[str, Tensor]]:
        """Every weight of the policy under its Hugging Face name."""
        weights: list[tuple[str, Tensor]] = self._everywhere(self._weights)
        return weights

    def start_saving(self, folder: Path, progress: Mapping[str, Any]) -> Saving:
        """See `agentrl.trainer.checkpointing.start_saving`; one at a time."""
        saving: Saving = self._everywhere(self._start_saving, folder, dict(progress))
        return saving

    def finish_saving(self) -> tuple[str, str]:
        """(uri, checksum) of the checkpoint that is being saved; waits for its files."""
        finished: tuple[str, str] = self._everywhere(self._finish_saving)
        return finished

    def load_here(self, uri: str) -> None:
        """The models, and the KL coefficient, as a checkpoint holds them; all ranks call it themselves, before anyone leads."""
        load_checkpoint(uri, self._models())
        coefficient = read_progress(uri)["kl_coefficient"]
        if self.companions.reference is not None and coefficient is not None:
            self.companions.reference.coefficient = coefficient

    def _models(self) -> dict[str, TrainedModel]:
        return {"policy": self.policy} | ({} if self.critic is None else {"critic": self.critic})

    def _forward(self, rows: Sequence[Row]) -> Sequence[Outputs]:
        return self.policy.forward(rows)

    def _train(
        self, batch: Batch, settings: AlgorithmConfig, policy_lr: float, update_policy: bool, token_lags: Sequence[Tensor]
    ) -> UpdateResult:
        return train_on(
            batch, self.policy, self.critic, settings, policy_lr=policy_lr, update_policy=update_policy,
            token_lags=token_lags, companions=self.companions,
        )  # fmt: skip

    def _begin_parts(self, settings: AlgorithmConfig, update_policy: bool) -> None:
        self._update = PipelinedUpdate(
            self.policy, self.critic, settings, update_policy=update_policy, companions=self.companions
        )

    def _add_part(self, batch: Batch, token_lags: Sequence[Tensor]) -> None:
        assert self._update is not None, "no update was begun"
        self._update.add(batch, token_lags)

    def _finish_parts(self, policy_lr: float) -> UpdateResult:
        assert self._update is not None, "no update was begun"
        update, self._update = self._update, None
        return update.finish(policy_lr)

    def _weights(self) -> list[tuple[str, Tensor]]:
        if dist.get_rank() == 0:
            return [(name, tensor.cpu()) for name, tensor in self.policy.export()]
        for _ in self.policy.export():  # each is gathered when it is taken
            pass
        return []

    def _start_saving(self, folder: Path, progress: Mapping[str, Any]) -> Saving:
        assert self._saving is None, "the checkpoint before this one is still being written"
        self._saving = start_saving(folder, self._models(), progress)
        return self._saving

    def _finish_saving(self) -> tuple[str, str]:
        assert self._saving is not None, "no checkpoint is being written"
        saving, self._saving = self._saving, None
        return saving.finish()


@contextlib.contextmanager
def dismissed(team: Team) -> Iterator[Team]:
    """Let the other ranks go at the end, however it comes."""
    try:
        yield team
    finally:
        team.dismiss()
