"""The trainer's side of the in-memory twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from uuid import UUID

from agentrl.errors import BadValue, CommitRefused, Fenced, IllegalMove, UsageError
from agentrl.store.codec import check_items, strict_json, trained_arrays
from agentrl.store.contract import WORK_PLACES, Checkpoint, Claim, ClaimedItem, StepCommit, StepResult, TrainerStart
from agentrl.store.memory_rows import Item, Run, Step
from agentrl.store.memory_weights import MemoryWeights
from agentrl.types import DropReason, Place, PolicyVersion


def _environment(r: Run, item: Item) -> str:
    return item.episodes[0].lineage.environment if item.imported else r.spec.environment


def _is_long(r: Run, item: Item) -> bool:
    tokens = sum(s.n_obs + s.n_act for e in item.episodes for _, s in e.segments)
    return r.spec.long_tokens is not None and tokens >= r.spec.long_tokens * len(item.episodes)


class MemoryTrainer(MemoryWeights):
    """Start, claim, commit and checkpoints."""

    def checkpoints(self, run: int) -> Sequence[Checkpoint]:
        with self._lock:
            r = self._run(run)
            live = [c for c in r.checkpoints if c.id not in r.abandoned_checkpoints | r.removed_checkpoints]
            return sorted(live, key=lambda c: (c.step, c.id), reverse=True)

    def start_trainer(self, run: int, *, owner: str, lease_s: float, checkpoint: int | None) -> TrainerStart:
        with self._lock:
            r, now = self._run(run), self._clock()
            died = r.owner is not None and r.owner != owner
            if died and r.trainer_lease_until >= now:
                raise Fenced(f"trainer {r.owner} holds run {r.spec.name!r}: stop it, or wait until its lease lapses")
            base, keep = self._base(r, checkpoint)
            r.branch += 1
            r.fence, r.owner, r.trainer_lease_until = next(self._numbers), owner, now + lease_s
            touched = self._abandon(r, keep.step)
            version = None
            if base is not None:
                version = self._add_version(r, base.version, keep.updates, base.uri, base.checksum, "published")
                r.recompute_lag(version.version)
            for item in list(r.leases.values()):
                touched.append(item)
                self._return_lease(r, item, charge=died and item.in_update)
            dropped = self._refresh_ready(r, touched)
            returned = sum(item.id in r.ready for item in touched)
            return TrainerStart(r.fence, r.branch, keep.step, keep.updates, version, returned, dropped)

    def _base(self, r: Run, checkpoint: int | None) -> tuple[PolicyVersion | None, StepResult]:
        if checkpoint is None:
            roots = [v for v in r.versions if v.updates == 0 and v.status != "failed"]
            return (roots[0] if roots else None), StepResult(0, 0)
        found = next((c for c in self.checkpoints(r.id) if c.id == checkpoint), None)
        if found is None:
            raise UsageError(f"checkpoint {checkpoint} is not on the live history of run {r.spec.name!r}, or was removed")
        return r.version(found.version), StepResult(found.step, found.updates)

    def _abandon(self, r: Run, keep: int) -> list[Item]:
        touched = []
        for step in r.steps:
            if not step.abandoned and step.result.step > keep:
                step.abandoned = True
                for item in sorted(step.items, key=lambda i: min(e.opened.fence for e in i.episodes)):
                    item.attempts, item.arrival, item.since = 0, next(self._numbers), self._clock()
                    touched.append(item)
        r.abandoned_checkpoints |= {c.id for c in r.checkpoints if c.step > keep}
        for item in touched:
            r.ready[item.id] = item
            for e in item.episodes:
                e.place = Place.READY
        return touched

    def _refresh_ready(self, r: Run, touched: Sequence[Item]) -> int:
        dropped = 0
        for item in list(r.ready.values()):
            item.token, item.in_update = None, False
            item.oldest_update = 0 if item.imported else r.oldest(item.episodes)
            if not r.in_range(item):
                del r.ready[item.id]
                self._drop_item(r, item, DropReason.ABANDONED_BRANCH, f"out of range on branch {r.branch}")
                dropped += 1
        return dropped

    def renew_trainer(self, run: int, fence: int, lease_s: float) -> None:
        with self._lock:
            self._trainer(run, fence).trainer_lease_until = self._clock() + lease_s

    def release_trainer(self, run: int, fence: int) -> None:
        with self._lock:
            r = self._run(run)
            if r.fence == fence and r.owner is None:
                return
            r = self._trainer(run, fence)
            for item in list(r.leases.values()):
                self._return_lease(r, item, charge=False)
            r.owner = None

    def claim(
        self, run: int, fence: int, *, n_min: int, n_max: int, lease_s: float, environments: Sequence[str] | None = None,
        held: Sequence[int] = (),
    ) -> Claim:  # fmt: skip
        with self._lock:
            r = self._trainer(run, fence)
            for item in [i for i in r.leases.values() if not i.in_update and i.token not in held]:
                self._return_lease(r, item, charge=False)
            self._reap(r)
            wanted = [i for i in r.ready.values() if environments is None or _environment(r, i) in environments]
            usable = sorted((i for i in wanted if r.in_range(i)), key=lambda i: (i.oldest_update, i.arrival))
            examined = sum(len(i.episodes) for i in r.ready.values())
            admissible = sum(len(i.episodes) for i in usable)
            taken = self._pick(r, usable, n_max // r.spec.group_size)
            waiting = None
            if len(taken) * r.spec.group_size < n_min:
                other = examined - sum(len(i.episodes) for i in wanted)
                other += sum(len(i.episodes) for i in r.leases.values() if i.token in held)
                more = len(taken) < min(len(usable), n_max) or self._more_can_arise(r, admissible, other)
                waiting = "rollouts" if more else "nothing"
                taken = [] if waiting == "rollouts" else taken
            token = next(self._numbers)
            for item in taken:
                del r.ready[item.id]
                r.leases[item.id] = item
                item.token, item.lease_until = token, self._clock() + lease_s
                for e in item.episodes:
                    e.place = Place.LEASE
            items = [ClaimedItem(i.id, token, i.oldest_update, r.item_lag(i), [e.stored() for e in i.episodes]) for i in taken]
            counts = {p: len(r.at(p)) for p in WORK_PLACES}
            return Claim(items, examined, admissible, counts, waiting)

    def _pick(self, r: Run, usable: Sequence[Item], n: int) -> list[Item]:
        """The oldest ``n``, with the reserved share of them long; nothing while it still waits for long ones."""
        reserved = 0 if r.spec.long_tokens is None else ceil(r.spec.long_share * n)
        if reserved == 0:
            return list(usable[:n])
        long = [i for i in usable if _is_long(r, i)]
        short = [i for i in usable if i not in long]
        patient = self._clock() < min((i.since for i in usable), default=0.0) + r.spec.long_wait_s
        if len(usable) >= n and len(long) < reserved and patient:
            return []
        taken = [*long[:reserved], *short, *long[reserved:]][:n]
        return sorted(taken, key=lambda i: (i.oldest_update, i.arrival))

    def _more_can_arise(self, r: Run, admissible: int, other: int) -> bool:
        spec, outstanding = r.spec, r.outstanding()
        if outstanding - other > admissible:
            return True
        room = spec.target_steps is None or (spec.target_steps - r.head.step) * spec.batch_max - outstanding >= spec.group_size
        pending = any(e.drop and e.drop.retryable and not e.drop.retried for e in r.at(Place.DROPPED))
        return r.status == "running" and room and (bool(r.tasks.get("train")) or pending)

    def _held(self, r: Run, items: Sequence[tuple[UUID, int]]) -> list[Item]:
        held = [r.leases[i] for i, token in items if i in r.leases and r.leases[i].token == token]
        if len(held) != len(items):
            raise CommitRefused(f"{len(items) - len(held)} of {len(items)} leases of run {r.spec.name!r} were lost: resume")
        return held

    def renew_leases(self, run: int, fence: int, items: Sequence[tuple[UUID, int]], lease_s: float) -> None:
        check_items(items, "items")
        with self._lock:
            r = self._trainer(run, fence)
            held = self._held(r, items)
            if not all(r.in_range(i) for i in held):
                raise CommitRefused(f"an item of run {r.spec.name!r} is over the lag bound: resume")
            for item in held:
                item.lease_until, item.in_update = self._clock() + lease_s, True

    def commit_step(self, run: int, fence: int, commit: StepCommit) -> StepResult:
        dropped = [(item, token) for item, token, _ in commit.dropped]
        named = [*commit.consumed, *dropped, *commit.released]
        check_items(named, "consumed, dropped and released")
        strict_json(dict(commit.denominators), "denominators")
        strict_json(dict(commit.metrics), "metrics")
        for t in commit.trained:
            trained_arrays(t)
        with self._lock:
            r = self._trainer(run, fence)
            known = next((s for s in r.steps if not s.abandoned and s.result.step == commit.step), None)
            if known is not None:
                if known.commit.batch_hash != commit.batch_hash:
                    raise CommitRefused(f"step {commit.step} is committed with another batch: resume")
                return replace(known.result, repeated=True)
            if commit.step != r.head.step + 1:
                raise CommitRefused(f"step {commit.step} does not follow step {r.head.step}: resume")
            r.version(commit.trainer_version)
            self._held(r, named)
            tokens = {token for _, token in named}
            if sum(i.token in tokens for i in r.leases.values()) != len(named):
                raise CommitRefused("the step leaves claimed items out: each must be consumed, dropped or released")
            consumed = self._held(r, commit.consumed)
            if not all(r.in_range(i) for i in consumed):
                raise CommitRefused("an item is over the lag bound: resume")
            masks = r.spec.staleness_mode == "segment_mask"
            members = {e.opened.trajectory for i in consumed for e in i.episodes if masks}
            if not {m.trajectory for m in commit.masked} <= members:
                raise BadValue(f"masked: names what step {commit.step} did not consume, or the run does not mask")
            return self._apply(r, commit, consumed)

    def _apply(self, r: Run, commit: StepCommit, consumed: list[Item]) -> StepResult:
        masked = {m.trajectory: m for m in commit.masked}
        for item in consumed:
            del r.leases[item.id]
            for e in item.episodes:
                e.place, e.masked = Place.CONSUMED, masked.get(e.opened.trajectory)
        for key, _, reason in commit.dropped:
            self._drop_item(r, r.leases.pop(key), reason, f"step {commit.step}")
        for key, _ in commit.released:
            self._return_lease(r, r.leases[key], charge=False)
        result = StepResult(commit.step, r.head.updates + commit.policy_updated)
        r.steps.append(Step(commit, result, r.branch, consumed))
        self._changed(r.id, "policy")
        return result

    def add_checkpoint(
        self, run: int, fence: int, *, step: int, updates: int, version: int, uri: str, checksum: str
    ) -> Checkpoint:
        with self._lock:
            r = self._trainer(run, fence)
            known = next((c for c in r.checkpoints if c.uri == uri), None)
            if known is not None:
                if (known.step, known.updates, known.version, known.checksum) != (step, updates, version, checksum):
                    raise IllegalMove(f"checkpoint {uri} is committed already, with other content")
                return known
            if not any((s.result.step, s.result.updates) == (step, updates) for s in r.steps if not s.abandoned):
                raise IllegalMove(f"the live history of run {r.spec.name!r} has no step {step} with {updates} updates")
            r.version(version)
            r.checkpoints.append(Checkpoint(next(self._numbers), r.branch, step, updates, version, uri, checksum))
            return r.checkpoints[-1]

    def retire_checkpoints(self, run: int, fence: int, *, keep: int) -> set[str]:
        with self._lock:
            r = self._trainer(run, fence)
            stay = self.checkpoints(run)[:keep]
            r.removed_checkpoints |= {c.id for c in r.checkpoints if c not in stay}
            return {c.uri for c in stay}
