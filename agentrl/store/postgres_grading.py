"""Verdicts and reuse in Postgres: the side of reward workers, and taking rows of another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from uuid import UUID

from agentrl.store.codec import clean_text, read_task, reward_parameters
from agentrl.store.contract import GradeJob, Imported, ImportFilter
from agentrl.store.postgres_reading import PostgresReading
from agentrl.types import Place, Reward


class PostgresGrading(PostgresReading):
    """The part of the store that reward workers and importers call."""

    def claim_grades(self, run: int, *, worker: str, n: int, lease_s: float, held: Sequence[int] = ()) -> Sequence[GradeJob]:
        found = self.rows(
            "select trajectory, fence, start_version, attempt, task_id, payload, split, evidence"
            " from agentrl.claim_grades_v2(%s, %s, %s, %s, %s::bigint[]) with ordinality order by ordinality",
            (run, worker, n, float(lease_s), list(held)),
        )
        read = self.trajectories(run, [f[0] for f in found], [f[2] for f in found]) if found else {}
        return [
            GradeJob(read[trajectory], fence, attempt, read_task(task_id, payload, split), evidence)
            for trajectory, fence, _, attempt, task_id, payload, split, evidence in found
        ]

    def renew_grades(self, jobs: Mapping[UUID, int]) -> set[UUID]:
        if not jobs:
            return set()
        kept = self.rows("select agentrl.renew_grades_v1(%s::uuid[], %s::bigint[])", (list(jobs), list(jobs.values())))
        return set(jobs) - {row[0] for row in kept}

    def grade(self, trajectory: UUID, fence: int, reward: Reward) -> Place:
        place, run = self.row(
            "select place, run from agentrl.grade_v1(%s, %s, %s, %s, %s, %s, %s, %s)",
            (trajectory, fence, *reward_parameters(reward)),
        )
        if place == Place.READY:
            self.notifier.leave(run, "items")
        return Place(place)

    def fail_grade(self, trajectory: UUID, fence: int, error: str) -> bool:
        again: bool = self.row("select agentrl.fail_grade_v1(%s, %s, %s)", (trajectory, fence, clean_text(error)))[0]
        return again

    def regrade(self, trajectory: UUID, reward: Reward) -> int:
        number: int = self.row(
            "select agentrl.regrade_v1(%s, %s, %s, %s, %s, %s, %s)", (trajectory, *reward_parameters(reward))
        )[0]
        return number

    def import_trajectories(self, run: int, source: int, which: ImportFilter) -> Imported:
        row = self.row(
            "select import, items, trajectories from agentrl.import_v1(%s, %s, %s, %s, %s, %s, %s, %s)",
            (run, source, *astuple(which)),
        )
        self.notifier.leave(run, "items")
        return Imported(*row)
