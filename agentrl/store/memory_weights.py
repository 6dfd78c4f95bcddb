"""The in-memory twin's side of weights on their way."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import IllegalMove, UnknownVersion
from agentrl.store.loads import EngineLoad, LaggingEngine, PublishCost
from agentrl.store.memory_rows import MemoryRows, Run
from agentrl.types import Place, PolicyVersion


class MemoryWeights(MemoryRows):
    """Versions, loads into engines, files that may go."""

    def newest_version(self, run: int) -> PolicyVersion | None:
        with self._lock:
            usable = [v for v in self._runs[run].versions if v.status != "failed"] if run in self._runs else []
            return usable[-1] if usable else None

    def version(self, run: int, version: int) -> PolicyVersion:
        with self._lock:
            return self._run(run).version(version)

    def stage_version(
        self, run: int, fence: int, *, parent: int | None, updates: int, uri: str, checksum: str
    ) -> PolicyVersion:
        with self._lock:
            r = self._trainer(run, fence)
            for v, staged_by in zip(r.versions, r.version_fences, strict=True):
                if v.uri == uri and v.status != "failed" and staged_by == fence:
                    if (v.parent, v.updates, v.checksum) != (parent, updates, checksum):
                        raise IllegalMove(f"the weights at {uri} are version {v.version} already, with other content")
                    return v
            if parent is not None and not 0 <= parent < len(r.versions):
                raise UnknownVersion(f"parent version {parent} has no row in run {r.spec.name!r}")
            if updates > r.head.updates:
                raise IllegalMove(f"weights with {updates} updates can't be staged: the ledger knows fewer")
            return self._add_version(r, parent, updates, uri, checksum, "staged")

    def publish_version(self, run: int, fence: int, version: int, cost: PublishCost | None = None) -> None:
        self._settle_version(run, fence, version, "published")

    def fail_version(self, run: int, fence: int, version: int, cost: PublishCost | None = None) -> None:
        self._settle_version(run, fence, version, "failed")

    def _settle_version(self, run: int, fence: int, version: int, status: str) -> None:
        with self._lock:
            r = self._trainer(run, fence)
            now = r.version(version).status
            if now not in ("staged", status):
                raise IllegalMove(f"version {version} is {now} and can't become {status}")
            if now != status:
                self._set_version_status(r, version, status)

    def record_engine_load(self, run: int, load: EngineLoad) -> None:
        with self._lock:
            r = self._run(run)
            r.version(load.version)
            newest = next((known for _, known in reversed(r.loads) if known.engine == load.engine), None)
            if newest is None or _result(newest) != _result(load):
                r.loads.append((self._clock(), load))

    def lagging_engines(self, run: int, over: int) -> Sequence[LaggingEngine]:
        with self._lock:
            r = self._run(run)
            newest = max((v.version for v in r.versions if v.status == "published"), default=None)
            if newest is None:
                return []
            found = []
            for load in self._alive(r):
                behind = r.versions[newest].updates - r.effective[load.version]
                if behind > over and not load.pinned:
                    missed = [v for v in r.published if v > load.version and r.versions[v].updates > r.effective[load.version]]
                    since = min(r.published[v] for v in missed)
                    last = next(known for _, known in reversed(r.loads) if known.engine == load.engine)
                    found.append(LaggingEngine(load.engine, load.version, behind, self._clock() - since, last.error))
            return sorted(found, key=lambda e: (-e.behind, e.engine))

    def _alive(self, r: Run) -> list[EngineLoad]:
        """The newest load of each engine whose process gave a sign of life within a lease's time."""
        now, held = self._clock(), {load.engine: (at, load) for at, load in r.loads if load.error is None}
        seen = {e.worker for e in r.at(Place.LIVE) if e.lease_until >= now}
        seen |= {load.loader or load.engine for at, load in r.loads if load.fence is None and at + r.spec.lease_s > now}
        trainer = r.owner is not None and r.trainer_lease_until >= now
        return [
            load for _, load in held.values() if (trainer if load.fence is not None else (load.loader or load.engine) in seen)
        ]

    def needed_weights(self, run: int, keep: int) -> set[str]:
        with self._lock:
            r = self._run(run)
            published = [v.version for v in r.versions if v.status == "published"]
            first = published[-keep] if len(published) >= keep else 0
            roots = [v.version for v in r.versions if v.updates == 0 and v.status != "failed"]
            held = {load.version for load in self._alive(r)}
            checkpoints = {c.version for c in r.checkpoints if c.id not in r.abandoned_checkpoints | r.removed_checkpoints}
            open_ = {e.version for i, e in enumerate(r.evaluations) if not self._progress(r, i).finished}
            needed = held | checkpoints | open_ | set(roots[:1])
            return {v.uri for v in r.versions if (v.version >= first or v.version in needed) and v.uri not in r.removed}

    def retire_weights(self, run: int, fence: int, *, keep: int, uris: Sequence[str]) -> set[str]:
        with self._lock:
            r = self._trainer(run, fence)
            free = set(uris) - self.needed_weights(run, keep)
            r.removed |= free
            return free


def _result(load: EngineLoad) -> tuple[int, bool, float]:
    return load.version, load.error is None, sum(load.phases.values())
