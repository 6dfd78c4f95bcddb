"""Episodes in Postgres: opening, writing turn by turn, completing, renewing. The hot path of a rollout worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from agentrl.errors import SegmentConflict
from agentrl.store.codec import clean_text, end_parameters, lineage_json, reward_parameters, segment_parameters, strict_json
from agentrl.store.contract import Change, OpenResult
from agentrl.store.postgres_batch import PostgresBatch
from agentrl.store.postgres_reading import PostgresReading
from agentrl.store.sql_functions import Function
from agentrl.store.sub_agents import body, stored_body
from agentrl.types import EpisodeEnd, Lineage, Opened, Place, Purpose, Segment, SubAgent, Task

WRITE_SEGMENT = Function(
    "agentrl.write_segment_v2", "uuid", "bigint", "bigint", "bigint", "bigint", "bytea", "bigint", "bigint", "bytea",
    "bytea", "bytea", "bytea", "text", "text", "text", "bytea", "text", "text", "bytea[]", "bytea", "text",
    *["double precision"] * 4, returns="boolean",
)  # fmt: skip
COMPLETE = Function(
    "agentrl.complete_v2", "uuid", "bigint", "bigint", "text", "text", "text", "boolean", "text", "bytea", "double precision",
    "boolean", "text", "text", "text", "double precision",
)  # fmt: skip
BEGIN_SUB_AGENT = Function(
    "agentrl.begin_sub_agent_v1", "uuid", "bigint", "uuid", "uuid", "bigint", "bigint", "text", "text", "bigint",
    "text", "text", "double precision",
)  # fmt: skip
END_SUB_AGENT = Function(
    "agentrl.end_sub_agent_v1", "uuid", "bigint", "uuid", "text", "text", "double precision", "boolean", "text", "text", "text",
    "double precision",
)  # fmt: skip
JUDGE_SUB_AGENT = Function(
    "agentrl.judge_sub_agent_v1", "uuid", "bigint", "uuid", "double precision", "boolean", "text", "text", "text",
    "double precision",
)  # fmt: skip
_ANNOUNCED: Mapping[Place, Change] = {Place.READY: "items", Place.GRADE_JOB: "grades"}
"""Places that somebody waits for, with what is told."""
_OPENED = (
    "select trajectory, fence, task_id, payload, split, task_index, seed, start_version, purpose, grp, seat, attempt,"
    " n_segments"
    " from agentrl.opened_v2(%s, %s, %s::uuid[])"
)


class PostgresEpisodes(PostgresBatch, PostgresReading):
    """The part of the store that rollout workers call."""

    def open_episodes(
        self, run: int, *, worker: str, request: UUID, n: int, engine_version: int, lineage: Lineage
    ) -> OpenResult:
        refusal, start_version, ids = self.row(
            "select refusal, start_version, opened from agentrl.open_v1(%s, %s, %s, %s, %s, %s)",
            (run, worker, request, n, engine_version, lineage_json(lineage)),
        )
        return self._opened(refusal, run, start_version, ids)

    def open_evaluation_episodes(self, evaluation: int, *, worker: str, request: UUID, n: int, lineage: Lineage) -> OpenResult:
        refusal, run, start_version, ids = self.row(
            "select refusal, run, start_version, opened from agentrl.open_evaluation_v1(%s, %s, %s, %s, %s)",
            (evaluation, worker, request, n, lineage_json(lineage)),
        )
        return self._opened(refusal, run, start_version, ids)

    def _opened(self, refusal: str | None, run: int, start_version: int | None, ids: list[UUID]) -> OpenResult:
        if not ids:
            return OpenResult([], refusal)
        return OpenResult([_read_opened(run, *row) for row in self.rows(_OPENED, (run, start_version, ids))])

    def write_segment(self, episode: Opened, segment: Segment, sub_agents: Sequence[SubAgent] = ()) -> bool:
        parameters = (episode.trajectory, episode.fence, *segment_parameters(segment))
        if not sub_agents:
            stored: bool = self.shared(WRITE_SEGMENT, parameters)
            return stored
        calls = [call for child in sub_agents for call in _write_calls(episode, child)]
        with self.transaction() as connection:
            cursor = connection.cursor(binary=True)
            ((stored,),) = cursor.execute(WRITE_SEGMENT.one.encode(), WRITE_SEGMENT.values(parameters)).fetchall()
            for function, values in calls if stored else ():
                cursor.execute(function.one.encode(), function.values(values))
        if not stored:
            self._check_repeated(episode, segment, sub_agents)
        return stored

    def _check_repeated(self, episode: Opened, segment: Segment, sub_agents: Sequence[SubAgent]) -> None:
        read = self.trajectories(episode.run, [episode.trajectory], [episode.start_version])[episode.trajectory]
        known = {child.id: stored_body(child) for child in read.sub_agents}
        if any(known.get(child.trajectory) != body(child) for child in sub_agents):
            raise SegmentConflict(f"segment {segment.index} of trajectory {episode.trajectory} is stored with other sub-agents")

    def complete(self, episode: Opened, end: EpisodeEnd) -> Place:
        parameters = (episode.trajectory, episode.fence, *end_parameters(end))
        if end.verdicts:
            place = Place(self._complete_with(episode, end, parameters))
        elif episode.group is None:
            place = Place(self.shared(COMPLETE, parameters))
        else:  # it locks its group, so sharing a transaction could make two workers wait for each other
            place = Place(self.called(COMPLETE, parameters))
        if place in _ANNOUNCED:
            self.notifier.leave(episode.run, _ANNOUNCED[place])
        return place

    def _complete_with(self, episode: Opened, end: EpisodeEnd, parameters: Sequence[Any]) -> str:
        with self.transaction() as connection:
            cursor = connection.cursor(binary=True)
            for trajectory, verdict in end.verdicts.items():
                values = (episode.trajectory, episode.fence, trajectory, *reward_parameters(verdict))
                cursor.execute(JUDGE_SUB_AGENT.one.encode(), JUDGE_SUB_AGENT.values(values))
            ((place,),) = cursor.execute(COMPLETE.one.encode(), COMPLETE.values(parameters)).fetchall()
        return str(place)

    def park(self, episode: Opened) -> bool:
        parked: bool = self.row("select agentrl.park_v1(%s, %s)", (episode.trajectory, episode.fence))[0]
        return parked

    def drop_stale(self, run: int, worker: str) -> set[UUID]:
        return set(self.row("select agentrl.drop_stale_v1(%s, %s)", (run, worker))[0])

    def renew_episodes(self, worker: str, episodes: Mapping[UUID, int]) -> set[UUID]:
        if not episodes:
            return set()
        kept = self.rows(
            "select agentrl.renew_v1(%s, %s::uuid[], %s::bigint[])", (worker, list(episodes), list(episodes.values()))
        )
        return set(episodes) - {row[0] for row in kept}


def _write_calls(episode: Opened, child: SubAgent) -> Iterator[tuple[Function, Sequence[Any]]]:
    """What stores a sub-agent, in order."""
    root, fence, identity = episode.trajectory, episode.fence, child.trajectory
    task = clean_text(child.task.id), strict_json(dict(child.task.payload), "sub_agent.task.payload")
    place = child.parent, child.parent_segment, child.seat
    named = clean_text(child.environment), clean_text(child.environment_version)
    yield BEGIN_SUB_AGENT, (root, fence, identity, *place, *task, child.seed, *named, float(child.duration_s))
    for segment in child.segments:
        yield WRITE_SEGMENT, (identity, fence, *segment_parameters(segment))
    verdict = reward_parameters(child.reward) if child.reward is not None else (None,) * 6
    outcome = child.outcome.value if child.outcome is not None else None
    yield END_SUB_AGENT, (root, fence, identity, child.termination.value, outcome, *verdict)


def _read_opened(
    run: int, trajectory: UUID, fence: int, task_id: str, payload: Mapping[str, Any], split: str, task_index: int, seed: int,
    start_version: int, purpose: str, group: UUID | None, seat: int, attempt: int, n_segments: int,
) -> Opened:  # fmt: skip
    return Opened(
        trajectory=trajectory,
        fence=fence,
        task=Task(task_id, payload, split),
        task_index=task_index,
        seed=seed,
        start_version=start_version,
        purpose=Purpose(purpose),
        group=group,
        seat=seat,
        attempt=attempt,
        run=run,
        n_segments=n_segments,
    )
