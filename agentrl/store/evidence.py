"""What a replay needs of a run beside its trajectories: tasks, and what each step made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from agentrl.store.codec import read_task
from agentrl.store.contract import Trained
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.types import Task

_FLOAT32 = np.dtype("<f4")

_ENDED = """
  select t.id, t.start_version from agentrl.trajectory t
  where t.run = %s and t.complete and t.root is null and t.outcome <> 'infrastructure'
    and not exists (select from agentrl.grade_job g where g.trajectory = t.id)
  order by t.started_at desc, t.id desc limit %s
"""
_TRAINABLE = """
  select t.id, t.start_version, t.split || '/' || t.task_idx from agentrl.trajectory t
  where t.run = %s and t.complete and t.purpose = 'train' and t.outcome <> 'infrastructure'
    and not exists (select from agentrl.grade_job g where g.trajectory = t.id)
  order by t.started_at desc, t.id desc limit %s
"""
_TASKS = """
  select t.id, t.task_id, coalesce(t.payload, k.payload), k.split
  from unnest(%s::uuid[], %s::bigint[]) m (id, start_version)
  join agentrl.trajectory t on t.run = %s and t.start_version = m.start_version and t.id = m.id
  join agentrl.task k on k.run = t.run and k.split = t.split and k.idx = t.task_idx
"""
_STEPS = "select step, branch from agentrl.step where run = %s and abandoned_by is null order by step"
_CONSUMED = """
  with consumed as (
    select c.trajectory, c.start_version, c.run, coalesce(c.masked_versions, '{}') as masked from agentrl.consumed c
    where c.run = %s and c.branch = %s and c.step = %s and c.source is null
  ), members as (
    select c.trajectory as id, c.start_version, c.trajectory as root, c.masked from consumed c
    union all
    select t.id, c.start_version, c.trajectory, c.masked from consumed c
    join agentrl.trajectory t on t.run = c.run and t.start_version = c.start_version and t.root = c.trajectory)
  select m.id, m.start_version, w.value, d.logprobs, d."values", d.advantages, d.returns, d.local_advantages, m.root,
         m.masked
  from members m
  join agentrl.trained d
    on d.start_version = m.start_version and d.trajectory = m.id and d.run = %s and d.branch = %s and d.step = %s
  left join agentrl.reward w on w.id = d.reward_id
  order by m.id
"""
_TRAINED = """
  select r.name, d.step, d.logprobs, d."values", d.advantages, d.returns, d.local_advantages, coalesce(c.masked_versions, '{}')
  from agentrl.trajectory t
  join agentrl.trained d on d.trajectory = t.id
  join agentrl.step s on s.run = d.run and s.branch = d.branch and s.step = d.step and s.abandoned_by is null
  join agentrl.run r on r.id = d.run
  left join agentrl.consumed c on c.run = d.run and c.branch = d.branch and c.trajectory = coalesce(t.root, t.id)
  where t.id = %s
  order by d.run = t.run desc, s.at desc limit 1
"""
_MEMBERS = "select n_trajectories from agentrl.step where run = %s and branch = %s and step = %s"


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """What a step trained on, sub-agents included. ``verdicts``: the reward that it used.

    ``n_trajectories`` counts episodes and may exceed what is still stored. ``roots``: the episode of each.
    """

    step: int
    n_trajectories: int
    roots: Sequence[UUID]
    start_versions: Sequence[int]
    verdicts: Sequence[float | None]
    trained: Sequence[Trained]
    masked_versions: Sequence[Sequence[int]]
    """Per trajectory, the versions whose tokens were left out of the loss."""


@dataclass(frozen=True, slots=True)
class LastTraining:
    """What the step of a run's live history that trained a trajectory last made of it."""

    run: str
    step: int
    trained: Trained
    masked_versions: Sequence[int]
    """Versions whose tokens were left out of the loss."""


def last_training(store: PostgresConnection, trajectory: UUID) -> LastTraining | None:
    """In the run that created it, or else in one that imported it; None when no step keeps arrays of it."""
    found = store.rows(_TRAINED, (trajectory,))
    if not found:
        return None
    ((run, step, logprobs, values, advantages, returns, local, masked),) = found
    kept = Trained(trajectory, _array(logprobs), _optional(values), _array(advantages), _optional(returns), _optional(local))
    return LastTraining(run, step, kept, masked)


def ended_trajectories(store: PostgresConnection, run: int, limit: int | None) -> list[tuple[UUID, int]]:
    """(id, start version) of trajectories that ended and wait for no verdict, failures of ours left out; newest first."""
    return [(identity, start) for identity, start in store.rows(_ENDED, (run, limit))]


def training_trajectories(store: PostgresConnection, run: int, limit: int | None) -> list[tuple[UUID, int, str]]:
    """(id, start version, name of the task) like `ended_trajectories`, of those that may be trained on."""
    return [(identity, start, task) for identity, start, task in store.rows(_TRAINABLE, (run, limit))]


def tasks_of(store: PostgresConnection, run: int, ids: Sequence[UUID], start_versions: Sequence[int]) -> Mapping[UUID, Task]:
    """The task of each trajectory."""
    rows = store.rows(_TASKS, (list(ids), list(start_versions), run))
    return {identity: read_task(task_id, payload, split) for identity, task_id, payload, split in rows}


def steps_of(store: PostgresConnection, run: int) -> list[tuple[int, int]]:
    """(step, branch) of the live history."""
    return [(step, branch) for step, branch in store.rows(_STEPS, (run,))]


def step_evidence(store: PostgresConnection, run: int, step: int, branch: int) -> StepEvidence:
    """What is stored of a step's data; imported trajectories are another run's rows and are left out."""
    ((n_trajectories,),) = store.rows(_MEMBERS, (run, branch, step))
    rows = store.rows(_CONSUMED, (run, branch, step, run, branch, step))
    trained = [
        Trained(trajectory, _array(logprobs), _optional(values), _array(advantages), _optional(returns), _optional(local))
        for trajectory, _, _, logprobs, values, advantages, returns, local, _, _ in rows
    ]
    starts, verdicts, roots, masked = ([row[i] for row in rows] for i in (1, 2, 8, 9))
    return StepEvidence(step, n_trajectories, roots, starts, verdicts, trained, masked)


def _array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, _FLOAT32)


def _optional(raw: bytes | None) -> np.ndarray | None:
    return None if raw is None else _array(raw)
