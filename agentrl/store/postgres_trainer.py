"""The trainer's side in Postgres: start and resume, claim, renew, commit, checkpoints, version rows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from agentrl.store.codec import check_items, strict_json, trained_arrays
from agentrl.store.contract import WORK_PLACES, Checkpoint, Claim, ClaimedItem, StepCommit, StepResult, TrainerStart
from agentrl.store.postgres_reading import PostgresReading
from agentrl.store.postgres_runs import PostgresRuns
from agentrl.types import StoredTrajectory

_CHECKPOINT = "select id, branch, step, updates, version, uri, checksum from"
_COMMIT = (
    "select step, updates, repeated, branch from agentrl.commit_step_v1"
    "(%s, %s, %s, %s, %s, %s, %s, %s, %s::uuid[], %s::bigint[], %s::text[])"
)


class PostgresTrainer(PostgresRuns, PostgresReading):
    """The part of the store that the trainer calls."""

    def checkpoints(self, run: int) -> Sequence[Checkpoint]:
        found = self.rows(
            f"{_CHECKPOINT} agentrl.checkpoint where run = %s and abandoned_by is null and removed_at is null"
            " order by step desc, id desc",
            (run,),
        )
        return [Checkpoint(*row) for row in found]

    def start_trainer(self, run: int, *, owner: str, lease_s: float, checkpoint: int | None) -> TrainerStart:
        fence, branch, step, updates, version, returned, dropped = self.row(
            "select fence, branch, step, updates, version, returned, dropped from agentrl.start_trainer_v1(%s, %s, %s, %s)",
            (run, owner, float(lease_s), checkpoint),
        )
        self.notifier.leave(run, "policy")
        base = None if version is None else self.version(run, version)
        return TrainerStart(fence, branch, step, updates, base, returned, dropped)

    def renew_trainer(self, run: int, fence: int, lease_s: float) -> None:
        self.rows("select agentrl.renew_trainer_v1(%s, %s, %s)", (run, fence, float(lease_s)))

    def release_trainer(self, run: int, fence: int) -> None:
        self.rows("select agentrl.release_trainer_v1(%s, %s)", (run, fence))

    def claim(
        self, run: int, fence: int, *, n_min: int, n_max: int, lease_s: float, environments: Sequence[str] | None = None,
        held: Sequence[int] = (),
    ) -> Claim:  # fmt: skip
        wanted = None if environments is None else list(environments)
        (found,) = self.row(
            "select agentrl.claim_v3(%s, %s, %s, %s, %s, %s::text[], %s::bigint[])",
            (run, fence, n_min, n_max, float(lease_s), wanted, list(held)),
        )
        listed = found["items"]
        read: dict[UUID, StoredTrajectory] = {}
        for source in {item["source"] for item in listed}:
            of_source = [item for item in listed if item["source"] == source]
            ids = [UUID(t) for item in of_source for t in item["trajectories"]]
            read |= self.trajectories(source, ids, [v for item in of_source for v in item["start_versions"]])
        items = [
            ClaimedItem(UUID(i["item"]), i["token"], i["oldest_update"], i["lag"], [read[UUID(t)] for t in i["trajectories"]])
            for i in listed
        ]
        counts = {place: found["counts"][place.value] for place in WORK_PLACES}
        return Claim(items, found["examined"], found["admissible"], counts, found["waiting"])

    def renew_leases(self, run: int, fence: int, items: Sequence[tuple[UUID, int]], lease_s: float) -> None:
        check_items(items, "items")
        self.rows(
            "select agentrl.renew_leases_v1(%s, %s, %s::uuid[], %s::bigint[], %s)",
            (run, fence, [i for i, _ in items], [t for _, t in items], float(lease_s)),
        )

    def commit_step(self, run: int, fence: int, commit: StepCommit) -> StepResult:
        fates: list[tuple[UUID, int, str]] = [
            *((item, token, "consumed") for item, token in commit.consumed),
            *((item, token, reason.value) for item, token, reason in commit.dropped),
            *((item, token, "released") for item, token in commit.released),
        ]
        check_items([(item, token) for item, token, _ in fates], "consumed, dropped and released")
        denominators = strict_json(dict(commit.denominators), "denominators")
        metrics = strict_json(dict(commit.metrics), "metrics")
        trained = [(t.trajectory, *trained_arrays(t)) for t in commit.trained]
        parameters = (
            run, fence, commit.step, commit.policy_updated, commit.trainer_version, commit.batch_hash, denominators, metrics,
            *([f[i] for f in fates] for i in range(3)),
        )  # fmt: skip
        masked = [(m.trajectory, sorted(m.versions), m.tokens) for m in commit.masked]
        if not trained and not masked:
            step, updates, repeated, _ = self.row(_COMMIT, parameters)
        else:
            with self.transaction() as connection:
                found = connection.execute(_COMMIT, parameters).fetchone()
                assert found is not None
                step, updates, repeated, branch = found
                if not repeated:
                    connection.cursor().executemany(
                        "select agentrl.add_trained_v2(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                        [(run, branch, step, *arrays) for arrays in trained],
                    )
                    connection.cursor().executemany(
                        "select agentrl.add_masked_v1(%s, %s, %s, %s, %s::bigint[], %s)",
                        [(run, branch, step, *of_one) for of_one in masked],
                    )
        self.notifier.leave(run, "policy")
        return StepResult(step, updates, repeated)

    def add_checkpoint(
        self, run: int, fence: int, *, step: int, updates: int, version: int, uri: str, checksum: str
    ) -> Checkpoint:
        row = self.row(
            f"{_CHECKPOINT} agentrl.add_checkpoint_v1(%s, %s, %s, %s, %s, %s, %s)",
            (run, fence, step, updates, version, uri, checksum),
        )
        return Checkpoint(*row)

    def retire_checkpoints(self, run: int, fence: int, *, keep: int) -> set[str]:
        found = self.rows("select agentrl.retire_checkpoints_v1(%s, %s, %s)", (run, fence, keep))
        return {uri for (uri,) in found}
