"""Verdicts and reuse in the in-memory twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from agentrl.errors import Fenced, IllegalMove, UsageError
from agentrl.store.codec import reward_parameters
from agentrl.store.contract import GradeJob, Imported, ImportFilter
from agentrl.store.memory_rows import Episode, MemoryRows, Run
from agentrl.types import DropReason, Outcome, Place, Purpose, Reward


class MemoryGrading(MemoryRows):
    """Grade jobs, re-grades and imports."""

    def claim_grades(self, run: int, *, worker: str, n: int, lease_s: float, held: Sequence[int] = ()) -> Sequence[GradeJob]:
        with self._lock:
            r = self._run(run)
            self._reap(r)
            waiting = r.at(Place.GRADE_JOB) + r.at(Place.GRADE_JOB, Purpose.EVAL)
            for job in [e.job for e in waiting if e.job and e.job.worker == worker and e.job.fence not in held]:
                job.worker, job.fence = None, None
            free = sorted((e.job.arrival, e.opened.trajectory) for e in waiting if e.job and e.job.fence is None)
            jobs = []
            for _, trajectory in free[:n]:
                e = r.episodes[trajectory]
                assert e.job is not None
                fence = next(self._numbers)
                e.job.worker, e.job.fence = worker, fence
                e.job.lease_s, e.job.lease_until = lease_s, self._clock() + lease_s
                evidence = None if e.end is None else e.end.evidence
                jobs.append(GradeJob(e.stored(), fence, e.job.attempts + 1, e.opened.task, evidence))
            return jobs

    def _held_job(self, trajectory: UUID, fence: int) -> tuple[Run, Episode] | None:
        found = self._find(trajectory)
        if found is None or found[1].place is not Place.GRADE_JOB or found[1].job is None or found[1].job.fence != fence:
            return None
        return found

    def renew_grades(self, jobs: Mapping[UUID, int]) -> set[UUID]:
        with self._lock:
            lost = set()
            for trajectory, fence in jobs.items():
                held = self._held_job(trajectory, fence)
                if held is None or held[1].job is None:
                    lost.add(trajectory)
                else:
                    held[1].job.lease_until = self._clock() + held[1].job.lease_s
            return lost

    def grade(self, trajectory: UUID, fence: int, reward: Reward) -> Place:
        reward_parameters(reward)
        with self._lock:
            held = self._held_job(trajectory, fence)
            if held is None:
                found = self._find(trajectory)
                if found is not None and (trajectory, fence) in found[0].graded_under:
                    return found[1].place
                raise Fenced(f"the grade job of trajectory {trajectory} is no longer held under fence {fence}")
            r, e = held
            e.rewards.append(reward)
            e.job = None
            r.graded_under[trajectory, fence] = True
            if e.opened.purpose is Purpose.EVAL:
                e.place = Place.EVALUATED
            elif e.opened.group is None:
                self._new_item(r, trajectory, [e])
            else:
                e.place = Place.GRADED
                self._settle_group(r, r.groups[e.opened.group])
            return e.place

    def fail_grade(self, trajectory: UUID, fence: int, error: str) -> bool:
        with self._lock:
            held = self._held_job(trajectory, fence)
            return True if held is None else self._give_back_job(*held, error)

    def regrade(self, trajectory: UUID, reward: Reward) -> int:
        reward_parameters(reward)
        with self._lock:
            found = self._find(trajectory)
            if found is None:
                raise UsageError(f"there is no trajectory {trajectory}")
            e = found[1]
            if e.end is None or e.end.outcome is Outcome.INFRASTRUCTURE:
                raise IllegalMove(f"trajectory {trajectory} has no complete end to grade")
            if e.place is Place.GRADE_JOB:
                raise IllegalMove(f"trajectory {trajectory} waits for its first verdict: claim its grade job")
            e.rewards.append(reward)
            return next(self._numbers)

    def import_trajectories(self, run: int, source: int, which: ImportFilter) -> Imported:
        with self._lock:
            r, s = self._run(run), self._run(source)
            if r is s:
                raise UsageError(f"run {r.spec.name!r} can't import from itself")
            if r.spec.lag_bound is not None:
                raise UsageError(f"run {r.spec.name!r} has a lag bound: imports need an unbounded run")
            steps = {
                e.opened.trajectory: x.result.step for x in s.steps if not x.abandoned for i in x.items for e in i.episodes
            }
            items: dict[UUID, list[Episode]] = {}
            for e in sorted(s.episodes.values(), key=lambda e: (e.started_at, e.opened.fence)):
                if (
                    e.opened.trajectory not in r.imported
                    and e.lineage.origin in r.spec.origins
                    and _matches(e, which, steps.get(e.opened.trajectory))
                ):
                    superseded = e.drop is not None and e.drop.reason is DropReason.SUPERSEDED
                    key = e.opened.trajectory if r.spec.group_size == 1 else None if superseded else e.opened.group
                    if key is not None:
                        items.setdefault(key, []).append(e)
            whole = [(k, v) for k, v in items.items() if len(v) == r.spec.group_size][: which.limit]
            for key, members in whole:
                copies = [replace(e, place=Place.READY, drop=None) for e in sorted(members, key=lambda e: e.opened.seat)]
                r.imported |= {e.opened.trajectory: e for e in copies}
                self._new_item(r, key, copies, imported=True)
            return Imported(next(self._numbers), len(whole), sum(len(v) for _, v in whole))


def _matches(e: Episode, which: ImportFilter, step: int | None) -> bool:
    if e.opened.purpose is not Purpose.TRAIN or e.end is None or e.end.outcome is Outcome.INFRASTRUCTURE:
        return False
    if not any(s.n_act for _, s in e.segments) or (e.end.outcome is Outcome.GRADED and not e.rewards):
        return False
    reward = e.rewards[-1] if e.rewards else None
    checks = [
        which.min_reward is None or (reward is not None and reward.value >= which.min_reward),
        which.max_reward is None or (reward is not None and reward.value <= which.max_reward),
        which.success is None or (reward is not None and reward.success == which.success),
        which.first_step is None or (step is not None and step >= which.first_step),
        which.last_step is None or (step is not None and step <= which.last_step),
    ]
    return all(checks)
