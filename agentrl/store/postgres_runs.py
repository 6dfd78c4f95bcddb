"""Runs and evaluations in Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from agentrl.errors import UsageError
from agentrl.store.codec import clean_text, strict_json
from agentrl.store.contract import (
    TRAINING_PLACES,
    WORK_PLACES,
    Conservation,
    Evaluation,
    EvaluationResult,
    RunRow,
    RunSpec,
)
from agentrl.store.postgres_weights import PostgresWeights
from agentrl.types import Origin, Place, Task

_RUN = """
  select r.id, r.name, r.environment, r.config, r.config_hash, r.seed, r.lag_bound, r.batch_min, r.batch_max, r.group_size,
         r.target_steps, r.max_running, r.max_attempts, r.max_lease_attempts, extract(epoch from r.lease)::float8,
         extract(epoch from r.max_age)::float8, extract(epoch from r.group_deadline)::float8, r.long_tokens, r.long_share,
         extract(epoch from r.long_wait)::float8, r.resume_partial, r.origins, r.ahead, r.staleness_mode, r.group_extra,
         r.oversample,
         r.status, r.branch, h.step, h.updates
  from agentrl.run r cross join lateral agentrl.head_v1(r.id) h
"""
_EVALUATION = """
  select e.id, e.version, e.updates, e.step, e.split, e.n,
         (select count(*) from agentrl.evaluated x where x.evaluation = e.id), e.finished_at is not null
  from agentrl.evaluation e
"""


def _read_run(row: Sequence[Any]) -> RunRow:
    run, *spec, origins, ahead, staleness_mode, group_extra, oversample, status, branch, step, updates = row
    settings = [*spec, tuple(map(Origin, origins)), ahead, staleness_mode, group_extra, oversample]
    return RunRow(run, RunSpec(*settings), status, branch, step, updates)


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


class PostgresRuns(PostgresWeights):
    """The part of the store that is about whole runs."""

    def create_run(self, spec: RunSpec, tasks: Mapping[str, Sequence[Task]]) -> RunRow:
        config = strict_json(dict(spec.config), "config")
        rows = [
            (split, i, task.id, strict_json(dict(task.payload), f"tasks.{split}[{i}].payload"))
            for split, listed in tasks.items()
            for i, task in enumerate(listed)
        ]
        try:
            with self.transaction() as connection:
                found = connection.execute(
                    "insert into agentrl.run (name, environment, config, config_hash, seed, lag_bound, batch_min, batch_max,"
                    " group_size, target_steps, max_running, max_attempts, max_lease_attempts, lease, max_age, group_deadline,"
                    " long_tokens, long_share, long_wait, resume_partial, origins, ahead, staleness_mode, group_extra,"
                    " oversample)"
                    f" values (%s, %s, %s::json, {', '.join(['%s'] * 22)}) returning id",
                    (
                        spec.name, spec.environment, config, spec.config_hash, spec.seed, spec.lag_bound, spec.batch_min,
                        spec.batch_max, spec.group_size, spec.target_steps, spec.max_running, spec.max_attempts,
                        spec.max_lease_attempts, _interval(spec.lease_s), _interval(spec.max_age_s),
                        _interval(spec.group_deadline_s), spec.long_tokens, float(spec.long_share), _interval(spec.long_wait_s),
                        spec.resume_partial, [origin.value for origin in spec.origins], spec.ahead, spec.staleness_mode,
                        spec.group_extra, spec.oversample,
                    ),
                ).fetchone()  # fmt: skip
                assert found is not None
                run = found[0]
                connection.execute("insert into agentrl.reap (run) values (%s)", (run,))
                connection.execute(
                    "insert into agentrl.task_cursor (run, split, n)"
                    " select %s, s, n from unnest(%s::text[], %s::bigint[]) x (s, n)",
                    (run, list(tasks), [len(t) for t in tasks.values()]),
                )
                columns: list[list[Any]] = [list(c) for c in zip(*rows, strict=True)] if rows else [[], [], [], []]
                connection.execute(
                    "insert into agentrl.task (run, split, idx, task_id, payload) select %s, s, i, t, p::json"
                    " from unnest(%s::text[], %s::bigint[], %s::text[], %s::text[]) x (s, i, t, p)",
                    (run, *columns),
                )
                connection.execute("select agentrl.ensure_partitions_v1(%s, 0)", (run,))
        except psycopg.errors.UniqueViolation as e:
            raise UsageError(f"A run called {spec.name!r} exists; resume it or choose another name.") from e
        except psycopg.errors.CheckViolation as e:
            raise UsageError(f"The settings of run {spec.name!r} contradict each other: {e.diag.message_primary}") from e
        return self._run(run)

    def _run(self, run: int) -> RunRow:
        found = self.rows(f"{_RUN} where r.id = %s", (run,))
        if not found:
            raise UsageError(f"there is no run with id {run}")
        return _read_run(found[0])

    def find_run(self, name: str) -> RunRow | None:
        if clean_text(name) != name:
            return None  # no row can hold such a name
        found = self.rows(
            f"{_RUN} where r.name = %s or %s = 'latest' order by (r.name = %s) desc, r.id desc limit 1", (name,) * 3
        )
        return _read_run(found[0]) if found else None

    def set_run_status(self, run: int, status: str) -> None:
        try:
            changed = self.rows("update agentrl.run set status = %s where id = %s returning id", (status, run))
        except psycopg.errors.CheckViolation as e:
            raise UsageError(f"{status!r} is no status of a run: use running, finished, interrupted or failed") from e
        if not changed:
            raise UsageError(f"there is no run with id {run}")

    def counts(self, run: int) -> Mapping[Place, int]:
        self._run(run)
        return dict(zip(WORK_PLACES, self.row("select * from agentrl.work_v1(%s)", (run,)), strict=True))

    def conservation(self, run: int) -> Conservation:
        self._run(run)
        places = ", ".join(p.value for p in TRAINING_PLACES)
        statement = f"select created, evaluated, eval_open, {places} from agentrl.conservation_v1(%s)"
        created, evaluated, eval_open, *counts = self.row(statement, (run,))
        return Conservation(created, dict(zip(TRAINING_PLACES, counts, strict=True)), evaluated, eval_open)

    def request_evaluation(self, run: int, *, version: int, step: int, split: str, n: int) -> Evaluation:
        (evaluation,) = self.row("select agentrl.request_evaluation_v1(%s, %s, %s, %s, %s)", (run, version, step, split, n))
        self.notifier.leave(run, "evaluation")
        return Evaluation(*self.row(f"{_EVALUATION} where e.id = %s", (evaluation,)))

    def pending_evaluation(self, run: int) -> Evaluation | None:
        self.rows("select agentrl.settle_evaluations_v1(%s)", (run,))
        found = self.rows(f"{_EVALUATION} where e.run = %s and e.finished_at is null order by e.id limit 1", (run,))
        return Evaluation(*found[0]) if found else None

    def evaluation_results(self, run: int) -> Sequence[EvaluationResult]:
        self.rows("select agentrl.settle_evaluations_v1(%s)", (run,))
        found = self.rows(f"{_EVALUATION} where e.run = %s and e.finished_at is not null order by e.id", (run,))
        scores = self.rows(
            "select evaluation, graded, successes, mean_reward from agentrl.evaluation_score where run = %s", (run,)
        )
        by_evaluation = {evaluation: score for evaluation, *score in scores}
        return [EvaluationResult(Evaluation(*row), *by_evaluation[row[0]]) for row in found]
