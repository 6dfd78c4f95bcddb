"""The in-memory twin of the Postgres store: the same contract, one lock, for tests. Nothing survives the process."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from agentrl.errors import (
    Fenced,
    IllegalMove,
    IncompleteTrajectory,
    SegmentConflict,
    SegmentGap,
    StoreError,
    UnknownVersion,
    UsageError,
)
from agentrl.store.codec import CONTENT, end_parameters, lineage_json, segment_parameters, strict_json
from agentrl.store.contract import (
    TRAINING_PLACES,
    WORK_PLACES,
    Conservation,
    Evaluation,
    EvaluationResult,
    OpenResult,
    QueryResult,
    RunRow,
    RunSpec,
)
from agentrl.store.memory_grading import MemoryGrading
from agentrl.store.memory_rows import Episode, Group, Job, Run, seed_of
from agentrl.store.memory_trainer import MemoryTrainer
from agentrl.store.saved_queries import saved_query
from agentrl.store.sub_agents import body
from agentrl.types import (
    OUTSIDE,
    DropReason,
    EpisodeEnd,
    Lineage,
    Opened,
    Outcome,
    Place,
    Purpose,
    Segment,
    StoredTrajectory,
    SubAgent,
    Task,
    Termination,
)

_NO_END = 2**62
_STATUSES = ("running", "finished", "interrupted", "failed")


class MemoryStore(MemoryTrainer, MemoryGrading):
    """A `TrajectoryStore` in memory; ``clock`` gives seconds and may be a test's own."""

    # runs
    def create_run(self, spec: RunSpec, tasks: Mapping[str, Sequence[Task]]) -> RunRow:
        strict_json(dict(spec.config), "config")
        for split, listed in tasks.items():
            for i, task in enumerate(listed):
                strict_json(dict(task.payload), f"tasks.{split}[{i}].payload")
        with self._lock:
            if any(r.spec.name == spec.name for r in self._runs.values()):
                raise UsageError(f"A run called {spec.name!r} exists; resume it or choose another name.")
            most = spec.ahead if spec.lag_bound is None else spec.lag_bound
            sizes_fit = spec.batch_min % spec.group_size == 0 and spec.batch_max % spec.group_size == 0
            if (
                not sizes_fit
                or not 0 < spec.batch_min <= spec.batch_max
                or (spec.lag_bound == 0 and spec.batch_min < spec.batch_max)
                or (spec.ahead is not None and most is not None and not 0 <= spec.ahead <= most)
                or (spec.staleness_mode == "segment_mask" and spec.lag_bound is None)
                or not 0 <= spec.group_extra <= (0 if spec.group_size == 1 else _NO_END)
                or not 0 <= (spec.oversample or 0) <= (_NO_END if spec.lag_bound is None else spec.lag_bound * spec.batch_max)
            ):
                raise UsageError(f"The settings of run {spec.name!r} contradict each other")
            r = Run(len(self._runs) + 1, spec, {s: list(t) for s, t in tasks.items()})
            self._runs[r.id] = r
            return self._row(r)

    def _row(self, r: Run) -> RunRow:
        return RunRow(r.id, r.spec, r.status, r.branch, r.head.step, r.head.updates)

    def find_run(self, name: str) -> RunRow | None:
        with self._lock:
            named = [r for r in self._runs.values() if r.spec.name == name]
            if not named and name == "latest":
                named = list(self._runs.values())
            return self._row(named[-1]) if named else None

    def set_run_status(self, run: int, status: str) -> None:
        if status not in _STATUSES:
            raise UsageError(f"{status!r} is no status of a run: use {', '.join(_STATUSES)}")
        with self._lock:
            self._run(run).status = status

    def counts(self, run: int) -> Mapping[Place, int]:
        with self._lock:
            r = self._run(run)
            return {p: len(r.at(p)) for p in WORK_PLACES}

    def conservation(self, run: int) -> Conservation:
        with self._lock:
            r = self._run(run)
            created = sum(e.opened.purpose is Purpose.TRAIN for e in r.everything())
            places = {p: len(r.at(p)) for p in TRAINING_PLACES}
            eval_open = len(r.at(Place.LIVE, Purpose.EVAL)) + len(r.at(Place.GRADE_JOB, Purpose.EVAL))
            return Conservation(created, places, len(r.at(Place.EVALUATED, Purpose.EVAL)), eval_open)

    # episodes
    def open_episodes(
        self, run: int, *, worker: str, request: UUID, n: int, engine_version: int, lineage: Lineage
    ) -> OpenResult:
        lineage_json(lineage)
        with self._lock:
            r = self._run(run)
            if request in self._requests:
                return self._repeat(request, run, worker)
            self._reap(r)
            if r.status != "running":
                return OpenResult([], "run_not_running")
            published = [v.version for v in r.versions if v.status == "published"]
            if not published:
                return OpenResult([], "no_version")
            if lineage.origin not in r.spec.origins:
                raise UsageError(f"run {r.spec.name!r} takes no {lineage.origin} trajectories: trainer.origins names them")
            outside = lineage.sandbox == OUTSIDE
            if parked := [] if outside else self._serve_parked(r, n, worker):
                self._requests[request] = (run, worker, [(e, e.opened.fence) for e in parked])
                return OpenResult([e.opened for e in parked])
            start = _Starter(self, r, worker, lineage, published[-1])
            opened = self._serve_retries(r, start, None, min(n, *self._room(r, engine_version)))
            by_lag, by_target, by_running = self._room(r, engine_version)
            charged = 0
            while len(opened) < n:
                if r.spec.group_size > 1:
                    used = self._serve_seat(r, start, opened, min(by_lag, by_target) - charged, by_running - charged)
                elif charged < min(by_lag, by_target, by_running) and r.tasks.get("train"):
                    opened.append(start.training(r.cursor, None, 0, 1, 0))
                    r.cursor, used = r.cursor + 1, 1
                else:
                    used = None
                if used is None:
                    break
                charged += used
            if opened:
                self._requests[request] = (run, worker, [(e, e.opened.fence) for e in opened])
                return OpenResult([e.opened for e in opened])
            if not r.tasks.get("train"):
                return OpenResult([], "no_tasks")
            return OpenResult([], "target_reached" if by_target < r.spec.group_size else "no_capacity")

    def _serve_parked(self, r: Run, n: int, worker: str) -> list[Episode]:
        waiting = sorted((e for e in r.at(Place.LIVE) if e.parked is not None), key=lambda e: e.parked or 0)
        served = [e for e in waiting if e.opened.start_version == waiting[0].opened.start_version][:n]
        for e in served:
            e.parked, e.worker, e.lease_until = None, worker, self._clock() + r.spec.lease_s
            e.opened = replace(e.opened, fence=next(self._numbers), n_segments=len(e.segments))
        return served

    def park(self, episode: Opened) -> bool:
        with self._lock:
            found = self._find(episode.trajectory)
            if found is None or found[1].opened.fence != episode.fence or found[1].place is not Place.LIVE:
                return False
            r, e = found
            if e.parked is not None or not self._is_resumable(r, e):
                return False
            self._set_aside(e)
            return True

    def _repeat(self, request: UUID, run: int, worker: str) -> OpenResult:
        known_run, known_worker, given = self._requests[request]
        if (known_run, known_worker) != (run, worker):
            raise UsageError(f"request {request} was made by worker {known_worker} of run {known_run} before")
        episodes = [e.opened for e, fence in given if e.opened.fence == fence]
        return OpenResult(episodes, None if episodes else "taken_over")

    def _room(self, r: Run, engine_version: int) -> tuple[int, int, int]:
        """By lag, by target, and by what may run."""
        if not 0 <= engine_version < len(r.versions):
            raise UnknownVersion(f"the engine reports version {engine_version}, which run {r.spec.name!r} does not know")
        spec, outstanding = r.spec, r.outstanding()
        ahead = spec.lag_bound if spec.ahead is None else spec.ahead
        by_lag, by_target, by_running = _NO_END, _NO_END, _NO_END
        if ahead is None:
            by_running = spec.max_running - len(r.at(Place.LIVE))
        else:
            batch = spec.batch_min if spec.ahead is None else spec.batch_max
            by_lag = (ahead + 1) * batch - outstanding - batch * r.lag_of(engine_version)
        if spec.oversample is not None:
            admitted = spec.batch_max + spec.oversample
            by_lag = min(by_lag, admitted - outstanding - spec.batch_max * r.lag_of(engine_version))
        if spec.target_steps is not None:
            by_target = (spec.target_steps - r.head.step) * spec.batch_max - outstanding
        return by_lag, by_target, by_running

    def _serve_retries(self, r: Run, start: _Starter, evaluation: int | None, n: int) -> list[Episode]:
        opened: list[Episode] = []
        dropped = sorted((e for e in r.episodes.values() if e.drop), key=lambda e: e.drop.order if e.drop else 0)
        for e in dropped:
            drop = e.drop
            if len(opened) >= n or e.evaluation != evaluation or drop is None or not drop.retryable or drop.retried:
                continue
            o, failures = e.opened, e.failures + drop.charged
            drop.retried = True
            if evaluation is None:
                opened.append(start.training(e.cursor, o.group, o.seat, o.attempt + 1, failures))
            else:
                opened.append(start.evaluation(r.evaluations[evaluation], o.seat, o.attempt + 1, failures))
        return opened

    def _serve_seat(self, r: Run, start: _Starter, opened: list[Episode], room: int, running: int) -> int | None:
        """Open the next seat of an open group, else of a new one when all its seats fit; the capacity that it uses, None: none.

        Its seats needn't run at once. Redundant ones use none: of each group only as many as it needs are ever trained.
        """
        size, seats = r.spec.group_size, r.spec.group_size + r.spec.group_extra
        groups = [g for g in r.groups.values() if g.open]
        g = next((g for g in groups if g.next_seat < size), None) if min(room, running) > 0 else None
        g = g or next((g for g in groups if size <= g.next_seat < seats), None)
        if g is None:
            if not r.tasks.get("train") or room < size or running <= 0:
                return None
            g = Group(uuid4(), r.cursor % len(r.tasks["train"]), r.cursor, self._clock())
            r.cursor += 1
            r.groups[g.id] = g
        opened.append(start.training(g.cursor, g.id, g.next_seat, 1, 0))
        g.next_seat += 1
        return int(g.next_seat <= size)

    def open_evaluation_episodes(self, evaluation: int, *, worker: str, request: UUID, n: int, lineage: Lineage) -> OpenResult:
        lineage_json(lineage)
        with self._lock:
            r, index = self._find_evaluation(evaluation)
            if request in self._requests:
                return self._repeat(request, r.id, worker)
            self._reap(r)
            e = r.evaluations[index]
            start = _Starter(self, r, worker, lineage, e.version)
            opened = self._serve_retries(r, start, index, n)
            used = {x.opened.seat for x in r.episodes.values() if x.evaluation == index}
            fresh = [i for i in range(e.n) if i not in used]
            opened += [start.evaluation(e, i, 1, 0) for i in fresh[: n - len(opened)]]
            if not opened:
                return OpenResult([], "no_tasks")
            self._requests[request] = (r.id, worker, [(e, e.opened.fence) for e in opened])
            return OpenResult([x.opened for x in opened])

    def _live(self, episode: Opened) -> tuple[Run, Episode]:
        found = self._find(episode.trajectory)
        if found is None or found[1].opened.fence != episode.fence or found[1].place is not Place.LIVE:
            raise Fenced(f"{self._named(episode)} is no longer open under fence {episode.fence}: stop this episode")
        return found

    def _named(self, episode: Opened) -> str:
        return f"trajectory {episode.trajectory} of run {self._runs[episode.run].spec.name!r}"

    def write_segment(self, episode: Opened, segment: Segment, sub_agents: Sequence[SubAgent] = ()) -> bool:
        content = segment_parameters(segment)[CONTENT]
        for child in sub_agents:
            strict_json(dict(child.task.payload), "sub_agent.task.payload")
        bodies = [body(child) for child in sub_agents]
        with self._lock:
            try:
                r, e = self._live(episode)
            except Fenced as fenced:
                raise Fenced(f"segment {segment.index}: {fenced}") from None
            expected = len(e.segments)
            named = f"segment {segment.index} of {self._named(episode)}"
            if segment.index > expected:
                raise SegmentGap(f"{named} arrived, but segment {expected} is missing: send from there", expected)
            if segment.index < expected and e.segments[segment.index][0] != content:
                raise SegmentConflict(f"{named} is stored with another body")
            if segment.index < expected and any(one not in map(body, e.sub_agents) for one in bodies):
                raise SegmentConflict(f"{named} is stored with other sub-agents")
            if segment.index == expected:
                for s in (segment, *(s for child in sub_agents for s in child.segments)):
                    for v in {int(v) for v in s.versions}:
                        r.version(v)
                e.segments.append((content, segment))
                e.sub_agents += sub_agents
            e.lease_until = self._clock() + r.spec.lease_s
            return segment.index == expected

    def complete(self, episode: Opened, end: EpisodeEnd) -> Place:
        end_parameters(end)
        with self._lock:
            found = self._find(episode.trajectory)
            if found is not None and found[1].ended_to is not None and found[1].opened.fence == episode.fence:
                return self._completed_before(found[1], end)
            r, e = self._live(episode)
            if end.outcome is not Outcome.INFRASTRUCTURE and end.n_segments != len(e.segments):
                raise IncompleteTrajectory(
                    f"{self._named(episode)} announced {end.n_segments} segments, but {len(e.segments)} are stored",
                    len(e.segments),
                )
            e.sub_agents = self._judged(e, end)
            e.end = end
            if end.sandbox is not None:
                e.lineage = replace(e.lineage, sandbox=end.sandbox)
            if end.reward is not None:
                e.rewards.append(end.reward)
            self._hand_over(r, e, end)
            e.ended_to = e.place
            return e.place

    def _judged(self, e: Episode, end: EpisodeEnd) -> list[SubAgent]:
        open_ = {child.trajectory for child in e.sub_agents if not child.graded}
        if unknown := end.verdicts.keys() - open_:
            raise IllegalMove(
                f"trajectory {min(unknown)} is no sub-agent without a verdict of {self._named(e.opened)}: it can't be given one"
            )
        judged = ((child, end.verdicts.get(child.trajectory)) for child in e.sub_agents)
        return [child if verdict is None else replace(child, graded=True, reward=verdict) for child, verdict in judged]

    def _completed_before(self, e: Episode, end: EpisodeEnd) -> Place:
        first = e.end
        assert first is not None
        assert e.ended_to is not None
        same = (first.termination, first.outcome) == (end.termination, end.outcome)
        if not same or (first.n_segments == len(e.segments) != end.n_segments):
            raise IllegalMove(f"trajectory {e.opened.trajectory} was completed before as {first.termination}/{first.outcome}")
        return e.ended_to

    def _hand_over(self, r: Run, e: Episode, end: EpisodeEnd) -> None:
        grouped = e.opened.group is not None
        if end.outcome is Outcome.INFRASTRUCTURE:
            aborted = end.termination is Termination.ABORTED
            reason = DropReason.CANCELLED if aborted else DropReason.INFRASTRUCTURE
            self._end_seat(r, e, reason, end.error, charged=not aborted, retryable=end.retryable)
        elif e.opened.purpose is Purpose.TRAIN and not any(s.n_act for _, s in e.segments):
            detail = "no action token was sampled"
            self._end_seat(r, e, DropReason.ZERO_ACTION, detail, charged=True, retryable=grouped)
        elif end.outcome is Outcome.GRADED and end.reward is None:
            e.place = Place.GRADE_JOB
            e.job = Job(next(self._numbers))
            self._changed(r.id, "grades")
        elif e.opened.purpose is Purpose.EVAL:
            e.place = Place.EVALUATED
        elif e.opened.group is None:
            self._new_item(r, e.opened.trajectory, [e])
        else:
            e.place = Place.GRADED
            self._settle_group(r, r.groups[e.opened.group])

    def drop_stale(self, run: int, worker: str) -> set[UUID]:
        with self._lock:
            return self._reap_stale(self._run(run), worker)

    def renew_episodes(self, worker: str, episodes: Mapping[UUID, int]) -> set[UUID]:
        with self._lock:
            lost = set()
            for trajectory, fence in episodes.items():
                found = self._find(trajectory)
                if (
                    found is None
                    or found[1].opened.fence != fence
                    or found[1].place is not Place.LIVE
                    or found[1].worker != worker
                ):
                    lost.add(trajectory)
                else:
                    found[1].lease_until = self._clock() + found[0].spec.lease_s
            return lost

    # policy versions and evaluations
    def request_evaluation(self, run: int, *, version: int, step: int, split: str, n: int) -> Evaluation:
        with self._lock:
            r = self._run(run)
            v = r.version(version)
            if v.status != "published":
                raise IllegalMove(f"version {version} is {v.status}: only a published version can be evaluated")
            if len(r.tasks.get(split, ())) < n:
                raise UsageError(f"split {split!r} of run {run} has {len(r.tasks.get(split, ()))} tasks, {n} were asked for")
            known = [i for i, e in enumerate(r.evaluations) if (e.version, e.split) == (version, split)]
            if known:
                return self._progress(r, known[0])
            self._changed(run, "evaluation")
            r.evaluations.append(Evaluation(next(self._numbers), version, v.updates, step, split, n))
            return r.evaluations[-1]

    def _find_evaluation(self, evaluation: int) -> tuple[Run, int]:
        for r in self._runs.values():
            for i, e in enumerate(r.evaluations):
                if e.id == evaluation:
                    return r, i
        raise UsageError(f"there is no evaluation with id {evaluation}")

    def pending_evaluation(self, run: int) -> Evaluation | None:
        with self._lock:
            r = self._run(run)
            now = (self._progress(r, i) for i in range(len(r.evaluations)))
            return next((e for e in now if not e.finished), None)

    def evaluation_results(self, run: int) -> Sequence[EvaluationResult]:
        with self._lock:
            r = self._run(run)
            results = []
            for i in range(len(r.evaluations)):
                now = self._progress(r, i)
                rewards = [e.rewards[-1] for e in r.episodes.values() if e.evaluation == i and e.rewards]
                if now.finished:
                    mean = sum(w.value for w in rewards) / len(rewards) if rewards else 0.0
                    results.append(EvaluationResult(now, len(rewards), sum(w.success is True for w in rewards), mean))
            return results

    # reading
    def trajectory(self, trajectory: UUID) -> StoredTrajectory | None:
        with self._lock:
            found = self._find(trajectory)
            if found is not None:
                return found[1].stored()
            families = (e.stored() for r in self._runs.values() for e in r.episodes.values() if e.sub_agents)
            return next((child for family in families for child in family.sub_agents if child.id == trajectory), None)

    def query(self, name: str, **parameters: Any) -> QueryResult:
        """Only ``conservation``; the other queries are SQL."""
        known = saved_query(name)
        for given in parameters:
            if given not in known.parameters:
                raise UsageError(
                    f"Query {name!r} has no parameter {given!r}; near: {difflib.get_close_matches(given, known.parameters)}"
                )
        if name != "conservation":
            raise StoreError(f"query {name!r} needs Postgres; the in-memory twin has no SQL")
        with self._lock:
            columns = (
                "run",
                "created",
                *(p.value for p in TRAINING_PLACES),
                "holds",
                "evaluated",
                "eval_open",
            )
            rows = []
            for r in self._runs.values():
                c = self.conservation(r.id)
                if parameters.get("run") in (None, r.spec.name, r.id):
                    rows.append((r.spec.name, c.created, *c.places.values(), c.holds, c.evaluated, c.eval_open))
            return QueryResult(columns, rows)

    def close(self) -> None:
        """Nothing to release."""


class _Starter:
    """Creates the episodes of one open call."""

    def __init__(self, store: MemoryStore, run: Run, worker: str, lineage: Lineage, start_version: int) -> None:
        self._next_fence: Callable[[], int] = store._numbers.__next__
        self._now = store._clock()
        self._run, self._worker, self._lineage, self._start_version = run, worker, lineage, start_version

    def training(self, cursor: int, group: UUID | None, seat: int, attempt: int, failures: int) -> Episode:
        index = cursor % len(self._run.tasks["train"])
        opened = self._opened("train", index, str(cursor), seat, attempt)
        return self._add(replace(opened, group=group), cursor, failures, None)

    def evaluation(self, e: Evaluation, index: int, attempt: int, failures: int) -> Episode:
        opened = self._opened(e.split, index, f"{e.split}:{e.version}", index, attempt)
        where = next(i for i, x in enumerate(self._run.evaluations) if x.id == e.id)
        return self._add(replace(opened, purpose=Purpose.EVAL), index, failures, where)

    def _opened(self, split: str, index: int, key: str, seat: int, attempt: int) -> Opened:
        seed = seed_of(self._run.spec.seed, key, seat, attempt)
        task = self._run.tasks[split][index]
        return Opened(
            uuid4(),
            self._next_fence(),
            replace(task, split=split),
            index,
            seed,
            self._start_version,
            seat=seat,
            attempt=attempt,
            run=self._run.id,
        )

    def _add(self, opened: Opened, cursor: int, failures: int, evaluation: int | None) -> Episode:
        e = Episode(
            opened, self._worker, self._lineage, cursor, failures, evaluation, self._now, self._now + self._run.spec.lease_s
        )
        self._run.episodes[opened.trajectory] = e
        return e
