"""What every process that generates does beside its episodes: it keeps its weights fresh and its leases alive.

Invariants
- freshness: the engine holds the newest version that is not failed, or one less than ``refresh_every`` updates older, soon
  after its row is there, and never misses one for longer than ``poll_s``.
- never_starved: whoever holds weights too old for anything to be admitted loads the newest ones, whatever the interval.
- told: each attempt to load weights, also a failed one, is a row and a line in the log.
- doomed_are_stopped: an episode that no claim would take any more is dropped and stopped soon after the step that doomed it,
  whoever dropped it.
- burnt_is_waited_out: weights that can't be read are tried again, because a trainer that finds them so burns their version;
  only when they stay the newest ones the process ends.
- leases_alive: live rows are renewed every third of the lease; who lost a row is told at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from agentrl.engine.contract import Engine
from agentrl.errors import WeightsCorrupt
from agentrl.monitor.log import ProcessLog
from agentrl.staleness import refresh_due
from agentrl.store.contract import RunRow, TrajectoryStore
from agentrl.types import PolicyVersion

LOAD_TRIES = 3
"""How often the newest weights are tried when they can't be read."""


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until ``event`` is set, for ``seconds`` at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def load_unless_superseded(store: TrajectoryStore, run: RunRow, engine: Engine, version: PolicyVersion) -> bool:
    """False when its weights could not be read and are not the newest any more: their file may have been removed meanwhile."""
    try:
        await engine.load(version)
    except WeightsCorrupt:
        newest = await asyncio.to_thread(store.newest_version, run.id)
        if newest is None or newest.version == version.version:
            raise
        return False
    return True


async def load_newest(store: TrajectoryStore, run: RunRow, engine: Engine) -> None:
    """For an engine without weights; there is a version."""
    while True:
        newest = await asyncio.to_thread(store.newest_version, run.id)
        assert newest is not None
        if await load_unless_superseded(store, run, engine, newest):
            return


@dataclass
class Freshness:
    """Loads new versions into one engine."""

    store: TrajectoryStore
    run: RunRow
    name: str
    engine: Engine
    log: ProcessLog
    poll_s: float = 2.0
    """Bounds what a lost wake-up costs."""
    refresh_every: int = 1
    """The newest weights are loaded once they are this many policy updates ahead."""
    announced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it when there may be a new version."""

    async def keep(self, starved: Callable[[], bool], looked: Callable[[bool], None]) -> None:
        """Load what is due, for ever. ``starved``: nothing runs, nothing is admitted; ``looked`` is told after each look at the
        newest version whether it was loaded.
        """
        unreadable = 0
        while True:
            self.announced.clear()
            newest = await asyncio.to_thread(self.store.newest_version, self.run.id)
            due = newest is not None and await self.is_due(newest, starved())
            if newest is not None and due:
                try:
                    if not await load_unless_superseded(self.store, self.run, self.engine, newest):
                        continue
                    unreadable = 0
                    looked(True)
                    self.log.gauge(policy_version=newest.version, step=newest.updates)
                except WeightsCorrupt:
                    unreadable += 1
                    if unreadable == LOAD_TRIES:
                        raise
                finally:
                    await self.record()
            else:
                looked(False)
            await self.record()
            await wait_for(self.announced, self.poll_s)

    async def record(self, *, pinned: bool = False) -> None:
        """Store what the engine did to get its weights. ``pinned``: it stays with a version."""
        for load in self.engine.take_loads():
            engine, loader = (load.engine, self.name) if load.engine else (self.name, None)
            row = replace(load, engine=engine, loader=loader, pinned=pinned)
            await asyncio.to_thread(self.store.record_engine_load, self.run.id, row)
            seconds = {name: round(value, 4) for name, value in load.phases.items()}
            if load.error is None:
                self.log.info("loaded weights", engine=engine, version=load.version, seconds=seconds, bytes=load.bytes)
            else:
                self.log.warning("weights not loaded", engine=engine, version=load.version, seconds=seconds, error=load.error)

    async def is_due(self, newest: PolicyVersion, starved: bool) -> bool:
        """Whether ``newest`` should be loaded now."""
        if newest.version == self.engine.version:
            return False
        if starved:
            return True
        held = await asyncio.to_thread(self.store.version, self.run.id, self.engine.version)
        return refresh_due(newest.updates, held.updates, self.refresh_every)


async def keep_leases(
    store: TrajectoryStore,
    run: RunRow,
    worker: str,
    held: Callable[[], Mapping[UUID, int]],
    lost: Callable[[UUID], None],
    closed: asyncio.Event | None = None,
) -> None:
    """Renew the rows that ``held`` names (trajectory -> fence), for ever; ``lost`` is told of each that is gone.

    ``closed``: set it when rows may have gone, so that nobody works on for a third of a lease for nothing.
    """
    closed = closed or asyncio.Event()
    while True:
        await wait_for(closed, run.spec.lease_s / 3)
        closed.clear()
        fences = held()
        if fences:
            for trajectory in await asyncio.to_thread(store.renew_episodes, worker, fences):
                lost(trajectory)


async def drop_stale(
    store: TrajectoryStore,
    run: RunRow,
    worker: str,
    moved: asyncio.Event,
    dropped: Callable[[UUID], None],
    looked: asyncio.Event,
) -> None:
    """Drop running episodes of ``worker`` that fell out of range, for ever; ``dropped`` is told of each.

    Looks when a step or version came (``moved``), and as often as leases are renewed. ``looked`` is set then: what others
    dropped in the meantime is for a renewal to find.
    """
    while True:
        await wait_for(moved, run.spec.lease_s / 3)
        moved.clear()
        for trajectory in await asyncio.to_thread(store.drop_stale, run.id, worker):
            dropped(trajectory)
        looked.set()
