"""Episodes in Postgres: opening, writing turn by turn, completing, renewing. The hot path of a rollout worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agentrl.store.arrays import Function
from agentrl.store.codec import end_parameters, lineage_json, segment_parameters
from agentrl.store.contract import OpenResult
from agentrl.store.postgres_batch import PostgresBatch
from agentrl.types import EpisodeEnd, Lineage, Opened, Place, Purpose, Segment, Task

WRITE_SEGMENT = Function(
    "agentrl.write_segment_v2", "uuid", "bigint", "bigint", "bigint", "bigint", "bytea", "bigint", "bigint", "bytea",
    "bytea", "bytea", "text", "text", "text", "bytea", "text", "text", "bytea[]", "bytea", *["double precision"] * 4,
)  # fmt: skip
COMPLETE = Function(
    "agentrl.complete_v1", "uuid", "bigint", "bigint", "text", "text", "text", "boolean", "double precision", "boolean", "text",
    "text", "text", "double precision",
)  # fmt: skip
_OPENED = (
    "select trajectory, fence, task_id, payload, split, task_index, seed, start_version, purpose, grp, seat, attempt,"
    " n_segments"
    " from agentrl.opened_v2(%s, %s, %s::uuid[])"
)


class PostgresEpisodes(PostgresBatch):
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

    def write_segment(self, episode: Opened, segment: Segment) -> bool:
        stored: bool = self.shared(WRITE_SEGMENT, (episode.trajectory, episode.fence, *segment_parameters(segment)))
        return stored

    def complete(self, episode: Opened, end: EpisodeEnd) -> Place:
        parameters = (episode.trajectory, episode.fence, *end_parameters(end))
        # The end of a group member locks its group, so sharing a transaction could make two workers wait for each other.
        place = Place(self.shared(COMPLETE, parameters) if episode.group is None else self.row(COMPLETE.one, parameters)[0])
        if place is Place.READY:
            self.notifier.leave(episode.run, "items")
        return place

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
