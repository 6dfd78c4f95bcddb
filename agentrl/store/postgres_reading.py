"""Reading trajectories back from Postgres, whole and in bulk, and running saved queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg

from agentrl.errors import UsageError
from agentrl.store.codec import LINEAGE_COLUMNS, read_lineage, read_reward
from agentrl.store.contract import QueryResult
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.store.prepared import decoder
from agentrl.store.saved_queries import bind, saved_query
from agentrl.store.sql_functions import Statement
from agentrl.store.stored_segment import read_segments, segment_columns
from agentrl.store.sub_agents import adopt
from agentrl.types import Outcome, Purpose, Segment, StoredTrajectory, Termination

_MEMBERS = "uuid[]", "bigint[]", "bigint"
_EPISODES = Statement(
    f"""
  select t.id, t.task_id, t.environment, t.purpose, t.grp, t.seat, t.attempt, t.seed, t.start_version, t.termination, t.outcome,
         t.parent, t.parent_seg, w.value, w.success, w.grader, w.grader_version, w.detail, w.duration_s, t.error, t.root,
         {LINEAGE_COLUMNS}
  from unnest($1, $2) with ordinality m (id, start_version, n)
  cross join lateral (
    select * from agentrl.trajectory a where a.run = $3 and a.start_version = m.start_version and a.id = m.id
    union all
    select * from agentrl.trajectory a where a.run = $3 and a.start_version = m.start_version and a.root = m.id
  ) t
  left join lateral (select * from agentrl.reward x where x.trajectory = t.id order by x.id desc limit 1) w on true
  order by m.n, t.root nulls first, t.seat
""",
    *_MEMBERS,
)
_SEGMENTS = Statement(
    f"""
  select {segment_columns("m.n - 1")}
  from unnest($1, $2) with ordinality m (id, start_version, n)
  join agentrl.segment s on s.run = $3 and s.start_version = m.start_version and s.trajectory = m.id
  order by m.n, s.seg
""",
    *_MEMBERS,
)
_ID, _START_VERSION, _ROOT = 0, 8, 20


class PostgresReading(PostgresConnection):
    """The part of the store that gives data back."""

    def trajectory(self, trajectory: UUID) -> StoredTrajectory | None:
        found = self.rows("select run, start_version, root from agentrl.trajectory where id = %s", (trajectory,))
        if not found:
            return None
        ((run, start_version, root),) = found
        episode = self.trajectories(run, [root or trajectory], [start_version])[root or trajectory]
        return next(member for member in (episode, *episode.sub_agents) if member.id == trajectory)

    def trajectories(self, run: int, ids: Sequence[UUID], start_versions: Sequence[int]) -> Mapping[UUID, StoredTrajectory]:
        """Many episodes with their segments and sub-agents, in two queries."""
        if not ids:
            return {}
        rows = self.decoded(_EPISODES, _EPISODES.encoded((ids, start_versions, run)))
        keys = [row[_ID] for row in rows], [row[_START_VERSION] for row in rows], run
        turns = self.result(_SEGMENTS, _SEGMENTS.encoded(keys))
        segments = read_segments(len(rows), turns, decoder(turns))
        read: dict[UUID, StoredTrajectory] = {}
        of_root: dict[UUID, list[StoredTrajectory]] = {}
        for row, listed in zip(rows, segments, strict=True):
            trajectory = _read_trajectory(row, listed)
            if row[_ROOT] is None:
                read[trajectory.id] = trajectory
            else:
                of_root.setdefault(row[_ROOT], []).append(trajectory)
        return read | {root: adopt(read[root], children) for root, children in of_root.items()}

    def query(self, name: str, **parameters: Any) -> QueryResult:
        statement, values = bind(saved_query(name), parameters)
        try:
            with self.transaction() as connection:
                cursor = connection.execute(statement.encode(), values)
                return QueryResult([c.name for c in cursor.description or ()], cursor.fetchall())
        except psycopg.DataError as e:
            raise UsageError(f"Query {name!r} can't use a parameter: {e.diag.message_primary}") from e


def _read_trajectory(row: Sequence[Any], segments: Sequence[Segment]) -> StoredTrajectory:
    (
        trajectory, task_id, environment, purpose, group, seat, attempt, seed, start_version, termination, outcome, parent,
        parent_segment,
    ) = row[:13]  # fmt: skip
    return StoredTrajectory(
        id=trajectory,
        task_id=task_id,
        environment=environment,
        purpose=Purpose(purpose),
        group=group,
        seat=seat,
        attempt=attempt,
        seed=seed,
        start_version=start_version,
        # A running or reaped trajectory has no end of its own: for a reader it is an infrastructure failure so far.
        termination=Termination(termination or Termination.FAILED),
        outcome=Outcome(outcome or Outcome.INFRASTRUCTURE),
        reward=read_reward(row[13:19]),
        lineage=read_lineage(row[21:]),
        segments=segments,
        parent=parent,
        parent_segment=parent_segment,
        inherits=parent is not None and outcome is None,
        error=row[19],
        ended=termination is not None,
    )
