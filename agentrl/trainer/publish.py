"""New weights get their name: export, checksum, stage, verify, publish; files that nobody needs any more go.

Invariants
- version_truth: a version is named only for weights whose step is committed; a name whose file does not verify is burnt and
  the same weights get a new one, so that updates never skip.
- staged_first: the row is there before any engine holds the weights, since from then on tokens may carry the version.
- no_overwrite: the file's path holds branch and fence; two trainers can't write the same one.
- cost_is_recorded: each name, burnt or published, has the trainer's seconds by phase and the size of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agentrl.errors import WeightsCorrupt
from agentrl.model.weight_files import MAX_SHARD_BYTES
from agentrl.monitor.stopwatch import Stopwatch
from agentrl.store.contract import TrainerStart, TrajectoryStore
from agentrl.store.loads import PublishCost
from agentrl.types import PolicyVersion
from agentrl.weights.files import WeightsFile, export_weights, verify
from agentrl.weights.pruning import Pruning

ATTEMPTS = 3

Named = Sequence[tuple[str, torch.Tensor]]
Push = Callable[[Callable[[], PolicyVersion], Named], PolicyVersion]
"""Stages a version by the given call, sends the tensors to the engines, returns the version."""


@dataclass
class Publisher:
    """Publishes for one trainer start. ``seconds`` is the wall time spent so far: the share of weight sync.

    Without ``push`` the engines read the version's file by themselves; without ``pruning`` all files stay.
    """

    store: TrajectoryStore
    run: int
    start: TrainerStart
    folder: Path
    push: Push | None = None
    pruning: Pruning | None = None
    max_bytes: int = MAX_SHARD_BYTES
    """Of one file of weights; a larger model is written as several with an index."""
    seconds: float = 0.0
    cost: PublishCost = field(default_factory=PublishCost)
    """Of the newest name."""

    def publish(
        self, weights: Callable[[], Iterable[tuple[str, torch.Tensor]]], *, parent: int | None, updates: int
    ) -> PolicyVersion:
        """Stage and publish the weights, with ``updates`` policy updates behind them.

        `WeightsCorrupt` after three bad files.
        """
        watch = Stopwatch()
        with watch.phase("export"):
            named = list(weights())
        for attempt in range(ATTEMPTS):
            name = f"b{self.start.branch}-f{self.start.fence}-u{updates}" + (f"-n{attempt}" if attempt else "")
            file = export_weights(named, self.folder / name, max_bytes=self.max_bytes, watch=watch)
            version = self._stage(named, file, parent, updates, watch)
            try:
                with watch.phase("verify"):
                    verify(version.uri, version.checksum)
            except WeightsCorrupt:
                self.store.fail_version(self.run, self.start.fence, version.version, self._spent(watch, file))
                parent, watch = version.version, Stopwatch()
                continue
            self.store.publish_version(self.run, self.start.fence, version.version, self._spent(watch, file))
            if self.pruning is not None:
                self.pruning.prune(self.store, self.run, self.start.fence)
            return version
        raise WeightsCorrupt(f"Weights of update {updates} did not verify {ATTEMPTS} times in {self.folder}: check the disk.")

    def _stage(self, named: Named, file: WeightsFile, parent: int | None, updates: int, watch: Stopwatch) -> PolicyVersion:
        def stage() -> PolicyVersion:
            with watch.phase("stage"):
                return self.store.stage_version(
                    self.run, self.start.fence, parent=parent, updates=updates, uri=file.uri, checksum=file.checksum
                )

        if self.push is None:
            return stage()
        with watch.phase("push"):
            version = self.push(stage, named)
        watch.seconds["push"] -= watch.seconds["stage"]
        return version

    def _spent(self, watch: Stopwatch, file: WeightsFile) -> PublishCost:
        self.seconds += watch.total
        self.cost = PublishCost(watch.seconds, file.n_bytes)
        return self.cost
