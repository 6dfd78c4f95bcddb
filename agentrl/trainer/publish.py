"""New weights get their name: export, checksum, stage, verify, publish.

Invariants
- version_truth: a version is named only for weights whose step is committed; a name whose file does not verify is burnt and
  the same weights get a new one, so that updates never skip.
- staged_first: the row is there before any engine holds the weights, since from then on tokens may carry the version.
- no_overwrite: the file's path holds branch and fence; two trainers can't write the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from agentrl.errors import WeightsCorrupt
from agentrl.model.weight_files import MAX_SHARD_BYTES
from agentrl.store.contract import TrainerStart, TrajectoryStore
from agentrl.types import PolicyVersion
from agentrl.weights.files import export_weights, verify

ATTEMPTS = 3

Named = Sequence[tuple[str, torch.Tensor]]
Push = Callable[[Callable[[], PolicyVersion], Named], PolicyVersion]
"""Stages a version by the given call, sends the tensors to the engines, returns the version."""


@dataclass
class Publisher:
    """Publishes for one trainer start. ``seconds`` is the wall time spent so far: the share of weight sync.

    Without ``push`` the engines read the version's file by themselves.
    """

    store: TrajectoryStore
    run: int
    start: TrainerStart
    folder: Path
    push: Push | None = None
    max_bytes: int = MAX_SHARD_BYTES
    """Of one file of weights; a larger model is written as several with an index."""
    seconds: float = 0.0

    def publish(self, tensors: Iterable[tuple[str, torch.Tensor]], *, parent: int | None, updates: int) -> PolicyVersion:
        """Stage and publish weights with ``updates`` policy updates behind them. `WeightsCorrupt` after three bad files."""
        began = time.monotonic()
        named = list(tensors)
        for attempt in range(ATTEMPTS):
            name = f"b{self.start.branch}-f{self.start.fence}-u{updates}" + (f"-n{attempt}" if attempt else "")
            file = export_weights(named, self.folder / name, max_bytes=self.max_bytes)
            stage = partial(
                self.store.stage_version,
                self.run,
                self.start.fence,
                parent=parent,
                updates=updates,
                uri=file.uri,
                checksum=file.checksum,
            )
            version = self.push(stage, named) if self.push else stage()
            try:
                verify(version.uri, version.checksum)
            except WeightsCorrupt:
                self.store.fail_version(self.run, self.start.fence, version.version)
                parent = version.version
                continue
            self.store.publish_version(self.run, self.start.fence, version.version)
            self.seconds += time.monotonic() - began
            return version
        raise WeightsCorrupt(f"Weights of update {updates} did not verify {ATTEMPTS} times in {self.folder}: check the disk.")
