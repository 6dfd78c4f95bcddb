"""Reading trajectories back from Postgres, whole and in bulk, and running saved queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg

from agentrl.errors import UsageError
from agentrl.store.arrays import array
from agentrl.store.codec import LINEAGE_COLUMNS, read_lineage, read_reward
from agentrl.store.contract import QueryResult
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.store.saved_queries import bind, saved_query
from agentrl.store.stored_segment import read_segments, segment_columns
from agentrl.store.sub_agents import adopt
from agentrl.types import Outcome, Purpose, Segment, StoredTrajectory, Termination

_TRAJECTORIES = f"""
  select t.id, t.task_id, t.environment, t.purpose, t.grp, t.seat, t.attempt, t.seed, t.start_version, t.termination, t.outcome,
         t.parent, t.parent_seg, w.value, w.success, w.grader, w.grader_version, w.detail, w.duration_s, t.error,
         {LINEAGE_COLUMNS}
  from unnest(%s::uuid[], %s::bigint[]) with ordinality m (id, start_version, n)
  join agentrl.trajectory t on t.run = %s and t.start_version = m.start_version and t.id = m.id
  left join lateral (select * from agentrl.reward x where x.trajectory = t.id order by x.id desc limit 1) w on true
  order by m.n
"""
_SUB_AGENTS = """
  select t.root, t.id, t.start_version from unnest(%s::uuid[], %s::bigint[]) m (id, start_version)
  join agentrl.trajectory t on t.run = %s and t.start_version = m.start_version and t.root = m.id
  order by t.root, t.seat
"""
_SEGMENTS = f"""
  select {segment_columns("m.n - 1")}
  from unnest(%s::uuid[], %s::bigint[]) with ordinality m (id, start_version, n)
  join agentrl.segment s on s.run = %s and s.start_version = m.start_version and s.trajectory = m.id
  order by m.n, s.seg
"""


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
        """Many episodes with their segments and sub-agents, in three queries."""
        if not ids:
            return {}
        started = self.rows(_SUB_AGENTS, (array("uuid", ids), array("bigint", start_versions), run))
        all_ids = [*ids, *(row[1] for row in started)]
        keys = (array("uuid", all_ids), array("bigint", [*start_versions, *(row[2] for row in started)]), run)
        segments = read_segments(len(all_ids), *self.result(_SEGMENTS, keys))
        listed = dict(zip(all_ids, segments, strict=True))
        read = {row[0]: _read_trajectory(row, listed[row[0]]) for row in self.rows(_TRAJECTORIES, keys)}
        of_root: dict[UUID, list[StoredTrajectory]] = {}
        for root, child, _ in started:
            of_root.setdefault(root, []).append(read.pop(child))
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
        lineage=read_lineage(row[20:]),
        segments=segments,
        parent=parent,
        parent_segment=parent_segment,
        inherits=parent is not None and outcome is None,
        error=row[19],
    )
