"""Rows of the in-memory twin, and the moves that its parts share. The caller holds the store's lock.

The twin keeps the protocol of the SQL functions with plain objects: an episode has a `place` instead of a table.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import md5
from threading import RLock
from typing import Any
from uuid import UUID

from agentrl.errors import Fenced, UnknownVersion, UsageError
from agentrl.staleness import lag, oldest_update
from agentrl.store.contract import Change, Checkpoint, Evaluation, Masked, RunSpec, StepCommit, StepResult
from agentrl.store.loads import EngineLoad
from agentrl.store.sub_agents import adopt
from agentrl.types import (
    OUTSIDE,
    DropReason,
    EpisodeEnd,
    Lineage,
    Opened,
    Outcome,
    Place,
    PolicyVersion,
    Purpose,
    Reward,
    Segment,
    StoredTrajectory,
    SubAgent,
    Task,
    Termination,
)

REAP_INTERVAL_S = 1.0


@dataclass(slots=True)
class Drop:
    """Why an episode was dropped and whether its seat may be served again."""

    reason: DropReason
    detail: str | None
    charged: bool
    retryable: bool
    order: int
    retried: bool = False


@dataclass(slots=True)
class Job:
    """The wait for a verdict, and who holds it."""

    arrival: int
    attempts: int = 0
    worker: str | None = None
    fence: int | None = None
    lease_s: float = 0.0
    lease_until: float = 0.0


@dataclass(slots=True)
class Episode:
    """A trajectory with everything known about it."""

    opened: Opened
    worker: str
    lineage: Lineage
    cursor: int
    failures: int
    evaluation: int | None
    started_at: float
    lease_until: float
    place: Place = Place.LIVE
    segments: list[tuple[tuple[Any, ...], Segment]] = field(default_factory=list)
    end: EpisodeEnd | None = None
    ended_to: Place | None = None
    drop: Drop | None = None
    rewards: list[Reward] = field(default_factory=list)
    job: Job | None = None
    sub_agents: list[SubAgent] = field(default_factory=list)
    masked: Masked | None = None
    """What its last step left out of the loss."""
    parked: int | None = None
    """Its place among those left to other workers."""

    @property
    def versions(self) -> set[int]:
        started = [s for child in self.sub_agents for s in child.segments]
        return {int(v) for s in (*(s for _, s in self.segments), *started) for v in s.versions}

    def stored(self) -> StoredTrajectory:
        own = self._own()
        return adopt(own, [_stored_child(own, child) for child in self.sub_agents]) if self.sub_agents else own

    def _own(self) -> StoredTrajectory:
        o, end = self.opened, self.end
        return StoredTrajectory(
            id=o.trajectory,
            task_id=o.task.id,
            environment=self.lineage.environment,
            purpose=o.purpose,
            group=o.group,
            seat=o.seat,
            attempt=o.attempt,
            seed=o.seed,
            start_version=o.start_version,
            termination=end.termination if end else Termination.FAILED,
            outcome=end.outcome if end else Outcome.INFRASTRUCTURE,
            reward=self.rewards[-1] if self.rewards else None,
            lineage=self.lineage,
            segments=[s for _, s in self.segments],
            error=end.error if end else None,
            ended=end is not None,
        )


def _stored_child(root: StoredTrajectory, child: SubAgent) -> StoredTrajectory:
    lineage = replace(root.lineage, environment=child.environment, environment_version=child.environment_version)
    return replace(
        root,
        id=child.trajectory,
        task_id=child.task.id,
        environment=child.environment,
        group=None,
        seat=child.seat,
        seed=child.seed,
        termination=child.termination,
        ended=True,
        outcome=child.outcome or Outcome.INFRASTRUCTURE,
        reward=child.reward,
        lineage=lineage,
        segments=list(child.segments),
        parent=child.parent,
        parent_segment=child.parent_segment,
        inherits=not child.graded,
    )


@dataclass(slots=True)
class Group:
    """Seats of one task; open until all are graded or one is lost."""

    id: UUID
    task_index: int
    cursor: int
    created_at: float
    next_seat: int = 0
    open: bool = True


@dataclass(slots=True)
class Item:
    """What a claim takes: a trajectory or a whole group, in ready or, with a token, leased."""

    id: UUID
    episodes: list[Episode]
    oldest_update: int
    arrival: int
    since: float
    attempts: int = 0
    imported: bool = False
    token: int | None = None
    lease_until: float = 0.0
    in_update: bool = False


@dataclass(slots=True)
class Step:
    """A committed step with the items it consumed."""

    commit: StepCommit
    result: StepResult
    branch: int
    items: list[Item]
    abandoned: bool = False


@dataclass(slots=True)
class Run:
    """All rows of one run."""

    id: int
    spec: RunSpec
    tasks: Mapping[str, Sequence[Task]]
    status: str = "running"
    branch: int = 0
    fence: int | None = None
    owner: str | None = None
    trainer_lease_until: float = 0.0
    cursor: int = 0
    reaped_at: float = float("-inf")
    versions: list[PolicyVersion] = field(default_factory=list)
    version_fences: list[int] = field(default_factory=list)
    effective: dict[int, int] = field(default_factory=dict)
    loads: list[tuple[float, EngineLoad]] = field(default_factory=list)
    published: dict[int, float] = field(default_factory=dict)
    """Version -> when."""
    removed: set[str] = field(default_factory=set)
    """Uris of weights whose files are gone."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    abandoned_checkpoints: set[int] = field(default_factory=set)
    removed_checkpoints: set[int] = field(default_factory=set)
    evaluations: list[Evaluation] = field(default_factory=list)
    episodes: dict[UUID, Episode] = field(default_factory=dict)
    imported: dict[UUID, Episode] = field(default_factory=dict)
    """Copies of other runs' episodes: content shared, place of this run's own."""
    graded_under: dict[tuple[UUID, int], bool] = field(default_factory=dict)
    groups: dict[UUID, Group] = field(default_factory=dict)
    ready: dict[UUID, Item] = field(default_factory=dict)
    leases: dict[UUID, Item] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    @property
    def head(self) -> StepResult:
        live = [s.result for s in self.steps if not s.abandoned]
        return live[-1] if live else StepResult(0, 0)

    def at(self, place: Place, purpose: Purpose = Purpose.TRAIN) -> list[Episode]:
        return [e for e in self.everything() if e.place is place and e.opened.purpose is purpose]

    def everything(self) -> list[Episode]:
        return [*self.episodes.values(), *self.imported.values()]

    def outstanding(self) -> int:
        """Opened and neither consumed nor dropped; of an open group not more than will be trained."""
        over = (Place.CONSUMED, Place.DROPPED)
        here = [e for e in self.everything() if e.opened.purpose is Purpose.TRAIN and e.place not in over]
        open_ = Counter(e.opened.group for e in here if e.opened.group and e.place not in (Place.READY, Place.LEASE))
        return len(here) - sum(max(0, n - self.spec.group_size) for n in open_.values())

    def version(self, version: int) -> PolicyVersion:
        if not 0 <= version < len(self.versions):
            raise UnknownVersion(f"version {version} has no row in run {self.spec.name!r}")
        return self.versions[version]

    def in_range(self, item: Item) -> bool:
        return self.spec.lag_bound is None or self.head.updates - item.oldest_update <= self.spec.lag_bound

    def recompute_lag(self, head: int) -> None:
        """Rebuild `effective`: the number lag counts from, per version, on the parent chain of ``head``."""
        chain: set[int] = set()
        at: int | None = head
        while at is not None:
            chain.add(at)
            at = self.versions[at].parent
        for v in self.versions:
            meet: int | None = v.version
            while meet is not None and meet not in chain:
                meet = self.versions[meet].parent
            self.effective[v.version] = oldest_update(v.updates, 0 if meet is None else self.versions[meet].updates)

    def oldest(self, episodes: Iterable[Episode]) -> int:
        """What the lag bound is counted from: each trajectory's oldest token, or its newest where older ones are masked."""
        counted = max if self.spec.staleness_mode == "segment_mask" else min
        return min(counted(self.effective[v] for v in e.versions) for e in episodes)

    def item_lag(self, item: Item) -> int:
        """Of the oldest token that is in the loss."""
        if self.spec.staleness_mode == "trajectory" or item.imported:
            return self.head.updates - item.oldest_update
        lags = (self.lag_of(v) for e in item.episodes for v in e.versions)
        return max(lag for lag in lags if lag <= (self.spec.lag_bound or 0))

    def lag_of(self, version: int) -> int:
        return lag(self.head.updates, self.effective[version])


def seed_of(run_seed: int, key: str, seat: int, attempt: int) -> int:
    return int(md5(f"{run_seed}:{key}:{seat}:{attempt}".encode()).hexdigest()[:15], 16)


@dataclass(slots=True)
class Listener:
    """A subscription of the twin."""

    close: Callable[[], None]


class MemoryRows:
    """Lock, clock, and the moves between places."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = RLock()
        self._runs: dict[int, Run] = {}
        self._requests: dict[UUID, tuple[int, str, list[tuple[Episode, int]]]] = {}
        self._numbers = itertools.count(1)
        self._listeners: list[tuple[int, Callable[[Change], None]]] = []

    def subscribe(self, run: int, callback: Callable[[Change], None]) -> Listener:
        self._listeners.append((run, callback))
        return Listener(lambda: self._listeners.remove((run, callback)))

    def _changed(self, run: int, change: Change) -> None:
        for listened, callback in list(self._listeners):
            if listened == run:
                callback(change)

    def _run(self, run: int) -> Run:
        if run not in self._runs:
            raise UsageError(f"there is no run with id {run}")
        return self._runs[run]

    def _trainer(self, run: int, fence: int) -> Run:
        r = self._run(run)
        if r.fence != fence or r.owner is None:
            raise Fenced(f"trainer fence {fence} of run {r.spec.name!r} is no longer valid: this trainer must exit")
        return r

    def _find(self, trajectory: UUID) -> tuple[Run, Episode] | None:
        return next(((r, r.episodes[trajectory]) for r in self._runs.values() if trajectory in r.episodes), None)

    def _drop(
        self, r: Run, e: Episode, reason: DropReason, detail: str | None, *, charged: bool = False, retryable: bool = False
    ) -> None:
        e.place = Place.DROPPED
        again = retryable and (not charged or e.failures + 1 < r.spec.max_attempts)
        e.drop = Drop(reason, detail, charged, again, next(self._numbers))

    def _drop_item(self, r: Run, item: Item, reason: DropReason, detail: str) -> None:
        for e in item.episodes:
            self._drop(r, e, reason, detail)

    def _to_ready(self, r: Run, item: Item) -> None:
        for e in item.episodes:
            e.place = Place.READY
        item.token, item.in_update = None, False
        item.oldest_update = 0 if item.imported else r.oldest(item.episodes)
        r.ready[item.id] = item
        self._changed(r.id, "items")

    def _new_item(self, r: Run, item: UUID, episodes: list[Episode], *, imported: bool = False) -> None:
        self._to_ready(r, Item(item, episodes, 0, next(self._numbers), self._clock(), imported=imported))

    def _return_lease(self, r: Run, item: Item, charge: bool) -> None:
        del r.leases[item.id]
        item.attempts += charge
        if item.attempts >= r.spec.max_lease_attempts:
            self._drop_item(r, item, DropReason.MAX_ATTEMPTS, f"{item.attempts} claims ended without a commit")
        else:
            self._to_ready(r, item)

    def _end_seat(self, r: Run, e: Episode, reason: DropReason, detail: str | None, *, charged: bool, retryable: bool) -> None:
        self._drop(r, e, reason, detail, charged=charged, retryable=retryable)
        if e.opened.group is not None:
            self._settle_group(r, r.groups[e.opened.group])

    def _settle_group(self, r: Run, g: Group) -> None:
        if not g.open:
            return
        members = [e for e in r.episodes.values() if e.opened.group == g.id]
        graded = sorted((e for e in members if e.place is Place.GRADED), key=lambda e: e.opened.seat)
        if len(graded) == r.spec.group_size:
            self._new_item(r, g.id, graded)
            self._close_group(r, g, DropReason.SUPERSEDED, "its group was complete without it")
        elif sum(e.drop is not None and not e.drop.retryable for e in members) > r.spec.group_extra:
            self._close_group(r, g, DropReason.GROUP_INCOMPLETE, "a seat of the group was lost")

    def _close_group(self, r: Run, g: Group, reason: DropReason, detail: str) -> None:
        g.open = False
        for e in [e for e in r.episodes.values() if e.opened.group == g.id]:
            if e.place in (Place.LIVE, Place.GRADE_JOB, Place.GRADED):
                self._drop(r, e, reason, detail)
            elif e.drop is not None and not e.drop.retried:
                e.drop.retryable = False

    def _give_back_job(self, r: Run, e: Episode, error: str) -> bool:
        """After a failure of the grader: free again, or dropped as ungraded after the last attempt."""
        job = e.job
        assert job is not None
        job.attempts, job.worker, job.fence = job.attempts + 1, None, None
        if job.attempts < r.spec.max_attempts:
            return True
        retryable = e.opened.group is not None
        self._end_seat(r, e, DropReason.UNGRADED, error, charged=True, retryable=retryable)
        return False

    def _reap(self, r: Run) -> None:
        now, head = self._clock(), r.head.updates
        if now - r.reaped_at <= REAP_INTERVAL_S and all(map(r.in_range, r.ready.values())):
            return
        r.reaped_at = now
        max_age = float("inf") if r.spec.max_age_s is None else r.spec.max_age_s
        waiting = (Place.GRADE_JOB, Place.GRADED)
        for e in list(r.episodes.values()):
            old = e.opened.purpose is Purpose.TRAIN and e.started_at + max_age < now
            lapsed = e.place is Place.LIVE and e.parked is None and e.lease_until < now
            detail = f"worker {e.worker} let its lease lapse"
            if lapsed and not old and self._is_resumable(r, e) and e.failures + 1 < r.spec.max_attempts:
                e.failures += 1
                self._set_aside(e)
            elif lapsed:
                self._end_seat(r, e, DropReason.INFRASTRUCTURE, detail, charged=True, retryable=True)
            elif old and e.place is Place.LIVE:
                self._too_old(r, e)
        for e in r.at(Place.GRADE_JOB) + r.at(Place.GRADE_JOB, Purpose.EVAL):
            if e.place is Place.GRADE_JOB and e.job and e.job.fence is not None and e.job.lease_until < now:
                self._give_back_job(r, e, f"reward worker {e.job.worker} let its lease lapse")
        for e in list(r.episodes.values()):
            if e.place in waiting and e.opened.purpose is Purpose.TRAIN and e.started_at + max_age < now:
                self._too_old(r, e)
        self._reap_stale(r)
        deadline = float("inf") if r.spec.group_deadline_s is None else r.spec.group_deadline_s
        for g in [g for g in r.groups.values() if g.open and g.created_at + deadline < now]:
            self._close_group(r, g, DropReason.GROUP_INCOMPLETE, "still open after the deadline")
        for item in [i for i in r.leases.values() if i.lease_until < now]:
            self._return_lease(r, item, charge=True)
        for item in list(r.ready.values()):
            if not r.in_range(item):
                del r.ready[item.id]
                self._drop_item(r, item, DropReason.STALE, f"lag {head - item.oldest_update} exceeds the bound")
            elif not item.imported and min(e.started_at for e in item.episodes) + max_age < now:
                del r.ready[item.id]
                self._drop_item(r, item, DropReason.TOO_OLD, "older than max_age")

    def _reap_stale(self, r: Run, worker: str | None = None) -> set[UUID]:
        """What can't be claimed any more: a worker's running episodes, or of all also those that wait."""
        if r.spec.lag_bound is None or r.spec.staleness_mode != "trajectory":
            return set()
        places = (Place.LIVE,) if worker is not None else (Place.LIVE, Place.GRADE_JOB, Place.GRADED)
        candidates = [e for place in places for e in r.at(place) if e.versions and worker in (None, e.worker)]
        gone = set()
        for e in sorted(candidates, key=lambda e: e.opened.fence):
            lag = r.head.updates - r.oldest([e])
            if e.place in places and lag > r.spec.lag_bound:
                self._end_seat(r, e, DropReason.STALE, f"lag {lag} exceeds the bound", charged=True, retryable=True)
                gone.add(e.opened.trajectory)
        return gone

    def _is_resumable(self, r: Run, e: Episode) -> bool:
        inside = e.lineage.sandbox != OUTSIDE
        return r.spec.resume_partial and e.opened.purpose is Purpose.TRAIN and bool(e.segments) and inside

    def _set_aside(self, e: Episode) -> None:
        e.parked = next(self._numbers)
        e.opened = replace(e.opened, fence=next(self._numbers))

    def _too_old(self, r: Run, e: Episode) -> None:
        retryable = e.opened.group is not None
        self._end_seat(r, e, DropReason.TOO_OLD, "older than max_age", charged=True, retryable=retryable)

    def _add_version(self, r: Run, parent: int | None, updates: int, uri: str, checksum: str, status: str) -> PolicyVersion:
        v = PolicyVersion(len(r.versions), parent, updates, uri, checksum, status)
        r.versions.append(v)
        r.version_fences.append(r.fence or 0)
        r.effective[v.version] = updates
        if status == "published":
            r.published[v.version] = self._clock()
        self._changed(r.id, "policy")
        return v

    def _set_version_status(self, r: Run, version: int, status: str) -> None:
        r.versions[version] = replace(r.version(version), status=status)
        if status == "published":
            r.published[version] = self._clock()
        self._changed(r.id, "policy")

    def _progress(self, r: Run, index: int) -> Evaluation:
        episodes = [e for e in r.episodes.values() if e.evaluation == index]
        done = sum(e.place is Place.EVALUATED for e in episodes)
        failed = sum(e.drop is not None and not e.drop.retryable for e in episodes)
        return replace(r.evaluations[index], done=done, finished=done + failed >= r.evaluations[index].n)
