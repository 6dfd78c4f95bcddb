"""The trainer's loop: claim, train, commit, publish.

Invariants
- complete_in_range: only claimed items are trained; claimed = consumed + dropped(reason) + released, by (item, token).
- checked_before_update: leases are renewed and fence, count and lag are tested right before the optimizer step.
- committed_then_public: weights are published, checkpointed and continued from only after their step is committed. A refused
  commit ends the process: its memory holds a step that does not exist.
- one_entry: a batch is one step, one ledger entry and at most one version, whatever the number of passes over it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

from torch import Tensor

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.run import RunConfig
from agentrl.errors import RunFailed
from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import Change, Claim, ClaimedItem, Masked, RunRow, StepCommit, TrainerStart, TrajectoryStore
from agentrl.trainer.baselines import uniform_group_ids
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.checkpointing import Saving, affordable_interval
from agentrl.trainer.console import Console
from agentrl.trainer.credit import left_out
from agentrl.trainer.gate import check_batch
from agentrl.trainer.lags import TokenLags
from agentrl.trainer.publish import Publisher
from agentrl.trainer.stale_tokens import mask_stale, masked_in
from agentrl.trainer.team import Team
from agentrl.trainer.update import UpdateResult
from agentrl.types import DropReason, PolicyVersion, StoredTrajectory

STOP_SEEN_S = 0.2


@dataclass
class TrainerLoop:
    """One trainer start, from its first claim to the target step or a stop."""

    store: TrajectoryStore
    run: RunRow
    config: RunConfig
    folder: Path
    start: TrainerStart
    version: PolicyVersion
    team: Team
    publisher: Publisher
    log: ProcessLog
    console: Console
    stop: Event
    in_update: bool = False
    """Between the renewal before the update and its commit: whoever fails here must not release its leases."""
    _step: int = 0
    _updates: int = 0
    _checkpointed: int = -1
    _saving: tuple[Saving, int, int, int] | None = None
    _interval: int = 1
    _wall_s: float = 0.0
    _steps_here: int = 0
    _examined: int = 0
    _admissible: int = 0
    _gate_passed: bool = False
    _items: Event = field(default_factory=Event)
    _ended: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._step, self._updates = self.start.step, self.start.updates
        self._lags = TokenLags(lambda version: self.store.version(self.run.id, version))
        self._checkpointed = self._step or -1
        self._interval = self.config.trainer.checkpoint_every or 1

    def train(self) -> bool:
        """True when the target step was reached, False after a stop. A checkpoint is saved either way."""
        subscription = self.store.subscribe(self.run.id, self._woken)
        try:
            while self._step < self.config.trainer.steps and not self.stop.is_set():
                claim, waited = self._claim()
                if claim is None:
                    break
                self._train_on(claim, waited)
        finally:
            subscription.close()
        if self._step != self._checkpointed and self._step > 0:
            self._checkpoint()
        self._commit_checkpoint()
        return self._step >= self.config.trainer.steps

    def _claim(self) -> tuple[Claim | None, float]:
        began = time.monotonic()
        trainer = self.config.trainer
        while not self.stop.is_set():
            if self._saving is not None and self._saving[0].written:
                self._commit_checkpoint()
            claim = self.store.claim(
                self.run.id, self.start.fence, n_min=trainer.batch, n_max=trainer.batch, lease_s=trainer.lease_s
            )
            if claim.items:
                self._examined += claim.examined
                self._admissible += claim.admissible
                return claim, time.monotonic() - began
            if claim.waiting == "nothing":
                raise RunFailed(
                    f"Run {self.run.spec.name} has no more work at step {self._step} of {trainer.steps}: all tasks are used up "
                    "or failed. `agentrl db query dropped_by_reason` says why."
                )
            self.console.waiting(claim, time.monotonic() - began)
            self._wait()
        return None, time.monotonic() - began

    def _woken(self, change: Change) -> None:
        if change == "items":
            self._items.set()

    def _wait(self) -> None:
        """Until items became ready, for ``poll_seconds`` at most; a stop is seen soon."""
        deadline = time.monotonic() + self.config.store.poll_seconds
        while not self.stop.is_set() and time.monotonic() < deadline:
            if self._items.wait(STOP_SEEN_S):
                break
        self._items.clear()

    def _train_on(self, claim: Claim, waited: float) -> None:
        began = time.monotonic()
        algorithm, trainer = self.config.algorithm, self.config.trainer
        claim = self._mask_stale(claim)
        batch, consumed, dropped = _sort_items(claim.items, self.team.max_context, algorithm)
        if not self._gate_passed:
            gap = check_batch(claim.items, batch, self.team, trainer.layout.precision)
            self._gate_passed = gap is not None
            if gap is not None:
                self.console.say(f"gate passed: tokens replayed, log-probs equal the engine's (largest difference {gap:.1e})")
        leases = [(item.item, item.token) for item in claim.items]
        self.store.renew_leases(self.run.id, self.start.fence, leases, trainer.lease_s)
        self.in_update = True
        lags = self._token_lags(claim, batch)
        result = self.team.train(batch, algorithm, self._learning_rate(), algorithm.updates_policy(self._step), lags)
        trained_s = time.monotonic() - began
        metrics = self._metrics(claim, dropped, result, waited, trained_s)
        masked = self._masked_in(batch, lags)
        if self.config.staleness.mode == "segment_mask":
            metrics["stale_masked"] = sum(m.tokens for m in masked) / max(1, batch.n_actions)
        committed = self.store.commit_step(
            self.run.id,
            self.start.fence,
            StepCommit(
                step=self._step + 1,
                policy_updated=result.policy_updated,
                trainer_version=self.version.version,
                batch_hash=_batch_hash(self.start, self._step + 1, leases),
                denominators=result.denominators,
                metrics=metrics,
                consumed=consumed,
                dropped=dropped,
                trained=result.trained,
                masked=masked,
            ),
        )
        self.in_update = False
        self._step, self._updates = committed.step, committed.updates
        if result.policy_updated:
            self.version = self.publisher.publish(self.team.weights(), parent=self.version.version, updates=self._updates)
        self._after_step(claim, metrics)

    def _mask_stale(self, claim: Claim) -> Claim:
        staleness = self.config.staleness
        if staleness.mode == "trajectory" or staleness.bound is None:
            return claim
        return mask_stale(claim, lambda version: self._lags.of_version(version, self.version), staleness.bound)

    def _masked_in(self, batch: Batch, lags: Sequence[Tensor]) -> list[Masked]:
        staleness = self.config.staleness
        if staleness.mode == "trajectory" or staleness.bound is None:
            return []
        return masked_in(batch, lags, staleness.bound)

    def _token_lags(self, claim: Claim, batch: Batch) -> list[Tensor]:
        versions = {t.id: t.token_version for t in batch.trajectories}
        lags: dict[UUID, Tensor] = {}
        for item in claim.items:
            ids = [t.id for t in item.trajectories if t.id in versions]
            of_item = self._lags.of_item(
                [versions[i] for i in ids], item.lag, self.version, masked=self.config.staleness.mode == "segment_mask"
            )
            lags |= zip(ids, of_item, strict=True)
        return [lags[t.id] for t in batch.trajectories]

    def _after_step(self, claim: Claim, metrics: dict[str, Any]) -> None:
        trainer, evaluation = self.config.trainer, self.config.evaluation
        if self._saving is not None and self._saving[0].written:
            self._commit_checkpoint()
        if self._step - max(self._checkpointed, 0) >= self._interval or self._step == trainer.steps:
            self._checkpoint()
        final = self._step == trainer.steps
        if final or (evaluation.every and self._step % evaluation.every == 0):
            n = evaluation.episodes if final else evaluation.episodes_during
            self.request_evaluation(n)
        queue = self.console.queue_depth(claim)
        self.log.gauge(
            step=self._step, policy_version=self.version.version, queue_length=queue, hit_rate=round(metrics["hit_rate"], 4)
        )
        self.log.info("step", **metrics)
        self.console.step(self._step, metrics, queue, self.store.evaluation_results(self.run.id))

    def request_evaluation(self, n: int) -> None:
        """Ask for ``n`` held-out episodes of the current version."""
        split = self.config.evaluation.split
        self.store.request_evaluation(self.run.id, version=self.version.version, step=self._step, split=split, n=n)

    def _checkpoint(self) -> None:
        """Copy everything and have it written while training goes on; the row follows when all files are there."""
        self._commit_checkpoint()
        folder = self.folder / "checkpoints" / f"b{self.start.branch}-f{self.start.fence}-s{self._step}"
        progress = {"step": self._step, "updates": self._updates, "kl_coefficient": self.team.kl_coefficient}
        saving = self.team.start_saving(folder, progress)
        self._saving = (saving, self._step, self._updates, self.version.version)
        self._checkpointed = self._step

    def _commit_checkpoint(self) -> None:
        if self._saving is None:
            return
        saving, step, updates, version = self._saving
        uri, checksum = self.team.finish_saving()
        self._saving = None
        self.store.add_checkpoint(
            self.run.id, self.start.fence, step=step, updates=updates, version=version, uri=uri, checksum=checksum
        )
        self._choose_interval(saving.seconds)

    def _choose_interval(self, saving_s: float) -> None:
        if self.config.trainer.checkpoint_every is not None or not self._steps_here:
            return
        step_s = self._wall_s / self._steps_here
        first, self._interval = self._interval == 1, affordable_interval(saving_s, step_s)
        if first:
            self.console.say(
                f"checkpoints every {self._interval} steps: saving one keeps the trainer {saving_s:.2f} s, a step takes "
                f"{step_s:.2f} s, so it costs {saving_s / (saving_s + self._interval * step_s):.1%} of the run"
            )

    def _learning_rate(self) -> float:
        """Linear from learning_rate to final_learning_rate times it, over the run's steps."""
        trainer = self.config.trainer
        progress = self._step / trainer.steps
        return trainer.learning_rate * (1 - (1 - trainer.final_learning_rate) * progress)

    def _metrics(
        self,
        claim: Claim,
        dropped: Sequence[tuple[UUID, int, DropReason]],
        result: UpdateResult,
        waited: float,
        trained_s: float,
    ) -> dict[str, Any]:
        now = time.monotonic()
        wall, self._ended = now - self._ended, now
        self._wall_s, self._steps_here = self._wall_s + wall, self._steps_here + 1
        trajectories = [t for item in claim.items for t in item.trajectories]
        rewards = [t.reward.value for t in trajectories if t.reward]
        successes = [t.reward.success for t in trajectories if t.reward and t.reward.success is not None]
        tokens = sum(t.n_tokens for t in trajectories)
        grading = sum(t.reward.duration_s for t in trajectories if t.reward)
        sync, self.publisher.seconds = self.publisher.seconds, 0.0
        lags = [item.lag for item in claim.items]
        metrics = {
            **result.metrics,
            "reward_mean": _mean(rewards),
            "reward_std": _std(rewards),
            "success": _mean([float(s) for s in successes]),
            "trajectories": len(trajectories),
            "tokens": tokens,
            "turns_mean": _mean([t.n_turns for t in trajectories]),
            "lag_mean": _mean(lags),
            "lag_max": max(lags),
            "uniform_groups": sum(d[2] is DropReason.ZERO_VARIANCE for d in dropped) / len(claim.items),
            "hit_rate": self._admissible / max(1, self._examined),
            "wall_s": round(wall, 4),
            "wait_s": round(waited, 4),
            "train_s": round(trained_s, 4),
            "tokens_per_s": round(tokens / wall, 1),
            "sync_share": round(sync / wall, 4),
            "reward_share": round(grading / (wall * self.config.rollout.concurrency), 5),
            "learning_rate": self._learning_rate(),
        }
        # What a batch doesn't have (no verdict, no yes or no) is absent: NaN has no place in the store.
        return {name: value for name, value in metrics.items() if not isinstance(value, float) or math.isfinite(value)}


def _sort_items(
    items: Sequence[ClaimedItem], max_context: int, algorithm: AlgorithmConfig
) -> tuple[Batch, list[tuple[UUID, int]], list[tuple[UUID, int, DropReason]]]:
    """The batch of all items that can be trained.

    An item with an unsound member is dropped whole, for that member's reason; a uniform group is dropped as zero_variance where
    the settings say so.
    """
    whole = build_batch([t for item in items for t in item.trajectories], max_context=max_context)
    rejected = dict(whole.rejected)
    uniform: set[Hashable] = set()
    if algorithm.drop_uniform_groups:
        uniform = uniform_group_ids(whole, algorithm, [not left_out(t, algorithm) for t in whole.trajectories])
    consumed: list[tuple[UUID, int]] = []
    dropped: list[tuple[UUID, int, DropReason]] = []
    sound: list[StoredTrajectory] = []
    for item in items:
        reasons = [rejected[t.id] for t in item.trajectories if t.id in rejected]
        if reasons:
            dropped.append((item.item, item.token, reasons[0]))
        elif any(t.group in uniform for t in item.trajectories):
            dropped.append((item.item, item.token, DropReason.ZERO_VARIANCE))
        else:
            consumed.append((item.item, item.token))
            sound.extend(item.trajectories)
    return build_batch(sound, max_context=max_context), consumed, dropped


def _batch_hash(start: TrainerStart, step: int, leases: Sequence[tuple[UUID, int]]) -> str:
    return hashlib.sha256(repr((start.fence, start.branch, step, sorted(leases))).encode()).hexdigest()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5 if values else float("nan")
