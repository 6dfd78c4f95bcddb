"""Versions, loads into engines and files of weights in Postgres."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentrl.errors import UnknownVersion
from agentrl.store.codec import clean_text
from agentrl.store.loads import EngineLoad, LaggingEngine, PublishCost
from agentrl.store.postgres_connection import PostgresConnection
from agentrl.types import PolicyVersion

_VERSION = "select version, parent, updates, uri, checksum, status from"


class PostgresWeights(PostgresConnection):
    """The part of the store that is about weights on their way."""

    def newest_version(self, run: int) -> PolicyVersion | None:
        found = self.rows(
            f"{_VERSION} agentrl.policy_version where run = %s and status <> 'failed' order by version desc limit 1", (run,)
        )
        return PolicyVersion(*found[0]) if found else None

    def version(self, run: int, version: int) -> PolicyVersion:
        found = self.rows(f"{_VERSION} agentrl.policy_version where run = %s and version = %s", (run, version))
        if not found:
            raise UnknownVersion(f"version {version} has no row in run {run}")
        return PolicyVersion(*found[0])

    def stage_version(
        self, run: int, fence: int, *, parent: int | None, updates: int, uri: str, checksum: str
    ) -> PolicyVersion:
        row = self.row(
            f"{_VERSION} agentrl.stage_version_v1(%s, %s, %s, %s, %s, %s)", (run, fence, parent, updates, uri, checksum)
        )
        self.notifier.leave(run, "policy")
        return PolicyVersion(*row)

    def publish_version(self, run: int, fence: int, version: int, cost: PublishCost | None = None) -> None:
        self._settle_version(run, fence, version, "published", cost)

    def fail_version(self, run: int, fence: int, version: int, cost: PublishCost | None = None) -> None:
        self._settle_version(run, fence, version, "failed", cost)

    def _settle_version(self, run: int, fence: int, version: int, status: str, cost: PublishCost | None) -> None:
        n_bytes, phases = (None, None) if cost is None else (cost.bytes, _phases(cost.phases))
        self.rows("select agentrl.settle_version_v2(%s, %s, %s, %s, %s, %s)", (run, fence, version, status, n_bytes, phases))
        self.notifier.leave(run, "policy")

    def record_engine_load(self, run: int, load: EngineLoad) -> None:
        self.rows(
            f"select agentrl.record_load_v2({', '.join(['%s'] * 11)})",
            (
                run, load.engine, load.version, load.transport, load.bytes, float(sum(load.phases.values())),
                _phases(load.phases), None if load.error is None else clean_text(load.error), load.loader, load.fence,
                load.pinned,
            ),
        )  # fmt: skip

    def lagging_engines(self, run: int, over: int) -> Sequence[LaggingEngine]:
        found = self.rows("select engine, version, behind, behind_s, error from agentrl.lagging_v1(%s, %s)", (run, over))
        return [LaggingEngine(*row) for row in found]

    def needed_weights(self, run: int, keep: int) -> set[str]:
        return {uri for (uri,) in self.rows("select agentrl.needed_weights_v1(%s, %s)", (run, keep))}

    def retire_weights(self, run: int, fence: int, *, keep: int, uris: Sequence[str]) -> set[str]:
        found = self.rows("select agentrl.retire_weights_v1(%s, %s, %s, %s::text[])", (run, fence, keep, list(uris)))
        return {uri for (uri,) in found}


def _phases(phases: Mapping[str, float]) -> str:
    """To the microsecond, for people."""
    return json.dumps({name: round(seconds, 6) for name, seconds in phases.items()})
