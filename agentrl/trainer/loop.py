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
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
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
from agentrl.trainer.lagging import LaggingEngines
from agentrl.trainer.lags import TokenLags
from agentrl.trainer.old_checkpoints import checkpoint_folder, checkpoints_folder, remove_old_checkpoints
from agentrl.trainer.publish import Publisher
from agentrl.trainer.rounds import check_pinned, round_metrics
from agentrl.trainer.stale_tokens import mask_stale, masked_in
from agentrl.trainer.taken import Taken
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
    leases: Sequence[tuple[UUID, int]] = ()
    """Of what is claimed and not committed: to be renewed together with the trainer's own, since each pass over it may take
    longer than a lease."""
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
        self._lagging = LaggingEngines(self.store, self.run.id, self.config.staleness.refresh_every, self.console.say, self.log)
        self._checkpointed = self._step or -1
        self._interval = self.config.trainer.checkpoint_every or 1

    def train(self) -> bool:
        """True when the target step was reached, False after a stop. A checkpoint is saved either way."""
        subscription = self.store.subscribe(self.run.id, self._woken)
        try:
            while self._step < self.config.trainer.steps and not self.stop.is_set():
                if not self._train_step():
                    break
        finally:
            subscription.close()
        if self._step != self._checkpointed and self._step > 0:
            self._checkpoint()
        self._commit_checkpoint()
        return self._step >= self.config.trainer.steps

    def _train_step(self) -> bool:
        """Claim a batch, at once or in parts, and train on it; False when a stop came before it was whole."""
        pace, algorithm, taken = self.config.pace, self.config.algorithm, Taken()
        if pace.part is not None:
            self.team.begin_parts(algorithm, algorithm.updates_policy(self._step))
        while taken.size < pace.batch_max:
            claim = self._claim(taken)
            if claim is None:
                return False
            if claim.items:
                self.leases = [*taken.leases, *((item.item, item.token) for item in claim.items)]
                part, lags = self._take(claim, taken)
                if pace.part is not None:
                    with self._updating(taken), taken.training():
                        self.team.add_part(part, lags)
            if pace.part is None or claim.waiting == "nothing":
                break
        self._update(taken)
        return True

    def _claim(self, taken: Taken) -> Claim | None:
        """What a whole batch, or the next part of one, needs; None after a stop. Without items: there are no more parts."""
        began, renewed = time.monotonic(), time.monotonic()
        pace, lease_s = self.config.pace, self.config.trainer.lease_s
        left = pace.batch_max - taken.size
        least = pace.batch_min if pace.part is None else min(pace.part, left)
        while not self.stop.is_set():
            if self._saving is not None and self._saving[0].written:
                self._commit_checkpoint()
            claim = self.store.claim(self.run.id, self.start.fence, n_min=least, n_max=left, lease_s=lease_s, held=taken.size)
            if claim.items or (claim.waiting == "nothing" and taken.size):
                self._examined, self._admissible = self._examined + claim.examined, self._admissible + claim.admissible
                taken.waited += time.monotonic() - began
                return claim
            if claim.waiting == "nothing":
                raise RunFailed(
                    f"Run {self.run.spec.name} has no more work at step {self._step} of {self.config.trainer.steps}: all tasks "
                    "are used up or failed. `agentrl db query dropped_by_reason` says why."
                )
            if taken.size and time.monotonic() - renewed > lease_s / 3:
                self.store.renew_leases(self.run.id, self.start.fence, taken.leases, lease_s)
                renewed = time.monotonic()
            self.console.waiting(claim, time.monotonic() - began)
            self._wait()
        return None

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

    def _take(self, claim: Claim, taken: Taken) -> tuple[Batch, list[Tensor]]:
        """What can be trained of a claim, and its tokens' lags; both are added to ``taken``, checked."""
        claim = self._mask_stale(claim)
        batch, consumed, dropped = _sort_items(claim.items, self.team.max_context, self.config.algorithm)
        if not self._gate_passed:
            gap = check_batch(claim.items, batch, self.team, self.config.trainer.layout.precision)
            self._gate_passed = gap is not None
            if gap is not None:
                self.console.say(f"gate passed: tokens replayed, log-probs equal the engine's (largest difference {gap:.1e})")
        lags = self._token_lags(claim, batch)
        check_pinned(batch, lags, self.config.pace, self.version)
        taken.add(claim, batch, lags, consumed, dropped)
        return batch, lags

    @contextmanager
    def _updating(self, taken: Taken) -> Iterator[None]:
        """Whatever fails in here is charged to the leases, which are renewed and checked first."""
        self.store.renew_leases(self.run.id, self.start.fence, taken.leases, self.config.trainer.lease_s)
        self.in_update = True
        yield
        self.in_update = False

    def _update(self, taken: Taken) -> None:
        algorithm, rate = self.config.algorithm, self._learning_rate()
        with self._updating(taken):
            with taken.training():
                if self.config.pace.part is not None:
                    result = self.team.finish_parts(rate)
                else:
                    result = self.team.train(taken.batch, algorithm, rate, algorithm.updates_policy(self._step), taken.lags)
            metrics = self._metrics(taken, result)
            masked = self._masked_in(taken.batch, taken.lags)
            if self.config.staleness.mode == "segment_mask":
                metrics["stale_masked"] = sum(m.tokens for m in masked) / max(1, taken.batch.n_actions)
            committed = self.store.commit_step(
                self.run.id,
                self.start.fence,
                StepCommit(
                    step=self._step + 1,
                    policy_updated=result.policy_updated,
                    trainer_version=self.version.version,
                    batch_hash=_batch_hash(self.start, self._step + 1, taken.leases),
                    denominators=result.denominators,
                    metrics=metrics,
                    consumed=taken.consumed,
                    dropped=taken.dropped,
                    trained=result.trained,
                    masked=masked,
                ),
            )
        self.leases = ()
        self._step, self._updates = committed.step, committed.updates
        if result.policy_updated:
            self.version = self.publisher.publish(self.team.weights, parent=self.version.version, updates=self._updates)
            cost = self.publisher.cost
            seconds = {phase: round(value, 4) for phase, value in cost.phases.items()}
            self.log.info("published", version=self.version.version, bytes=cost.bytes, seconds=seconds)
        self._after_step(taken.claim, metrics)

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
            ids = [m.id for m in _members(item) if m.id in versions]
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
        self._lagging.look()

    def request_evaluation(self, n: int) -> None:
        """Ask for ``n`` held-out episodes of the current version."""
        split = self.config.evaluation.split
        self.store.request_evaluation(self.run.id, version=self.version.version, step=self._step, split=split, n=n)

    def _checkpoint(self) -> None:
        """Copy everything and have it written while training goes on; the row follows when all files are there."""
        self._commit_checkpoint()
        folder = checkpoint_folder(self.folder, branch=self.start.branch, fence=self.start.fence, step=self._step)
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
        keep, folder = self.config.trainer.keep_checkpoints, checkpoints_folder(self.folder)
        remove_old_checkpoints(self.store, self.run.id, self.start.fence, folder, keep=keep)
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

    def _metrics(self, taken: Taken, result: UpdateResult) -> dict[str, Any]:
        now = time.monotonic()
        wall, self._ended = now - self._ended, now
        self._wall_s, self._steps_here = self._wall_s + wall, self._steps_here + 1
        trajectories = [t for item in taken.items for t in item.trajectories]
        rewards = [t.reward.value for t in trajectories if t.reward]
        successes = [t.reward.success for t in trajectories if t.reward and t.reward.success is not None]
        members = [m for item in taken.items for m in _members(item)]
        tokens = sum(m.n_tokens for m in members)
        grading = sum(t.reward.duration_s for t in trajectories if t.reward)
        sync, self.publisher.seconds = self.publisher.seconds, 0.0
        lags = [item.lag for item in taken.items]
        metrics = {
            **result.metrics,
            "reward_mean": _mean(rewards),
            "reward_std": _std(rewards),
            "success": _mean([float(s) for s in successes]),
            "trajectories": len(trajectories),
            "sub_agents": len(members) - len(trajectories),
            "tokens": tokens,
            "turns_mean": _mean([t.n_turns for t in trajectories]),
            "lag_mean": _mean(lags),
            "lag_max": max(lags),
            **round_metrics(taken.claim, self.config.pace),
            "uniform_groups": sum(d[2] is DropReason.ZERO_VARIANCE for d in taken.dropped) / len(taken.items),
            "hit_rate": self._admissible / max(1, self._examined),
            "wall_s": round(wall, 4),
            "wait_s": round(taken.waited, 4),
            "train_s": round(taken.trained_s, 4),
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

    An item with an unsound member, a sub-agent too, is dropped whole, for that member's reason; one with a trajectory that an
    item before it has too is a duplicate, and the first trains; a uniform group is dropped as zero_variance where the settings
    say so.
    """
    whole = build_batch([m for item in items for m in _members(item)], max_context=max_context)
    rejected: dict[UUID, DropReason] = {i: reason for i, reason in whole.rejected if reason is not DropReason.DUPLICATE}
    seen: set[UUID] = set()
    uniform: set[Hashable] = set()
    if algorithm.drop_uniform_groups:
        uniform = uniform_group_ids(whole, algorithm, [not left_out(t, algorithm) for t in whole.trajectories])
    consumed: list[tuple[UUID, int]] = []
    dropped: list[tuple[UUID, int, DropReason]] = []
    sound: list[StoredTrajectory] = []
    for item in items:
        members = _members(item)
        reasons = [rejected[m.id] for m in members if m.id in rejected]
        reasons += [DropReason.DUPLICATE for m in members if m.id in seen]
        seen.update(m.id for m in members)
        if reasons:
            dropped.append((item.item, item.token, reasons[0]))
        elif any(t.group in uniform for t in item.trajectories):
            dropped.append((item.item, item.token, DropReason.ZERO_VARIANCE))
        else:
            consumed.append((item.item, item.token))
            sound.extend(_members(item))
    return build_batch(sound, max_context=max_context), consumed, dropped


def _members(item: ClaimedItem) -> list[StoredTrajectory]:
    """What is trained of an item: its episodes, each followed by its sub-agents."""
    return [member for episode in item.trajectories for member in episode.family]


def _batch_hash(start: TrainerStart, step: int, leases: Sequence[tuple[UUID, int]]) -> str:
    return hashlib.sha256(repr((start.fence, start.branch, step, sorted(leases))).encode()).hexdigest()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5 if values else float("nan")
