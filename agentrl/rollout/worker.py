"""The rollout worker: opens what the store admits and runs it concurrently; `agentrl.rollout.upkeep` keeps weights and leases.

Invariants
- lost_is_stopped: an episode that lost its row is stopped at once.
- one_failure: an episode that fails in an unforeseen way is completed as infrastructure and touches no other.
- clean_release: a stop leaves running episodes to other workers or completes them as aborted, also those that the store
  opens in that moment; neither costs an attempt.
- liveness: a refusal is a logged value and is asked again after ``poll_s``, or as soon as weights or places change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from agentrl.engine.contract import Engine
from agentrl.errors import Fenced, StoreError
from agentrl.monitor.failures import Failures
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.upkeep import Freshness, drop_stale, keep_leases, wait_for
from agentrl.store.contract import Change, Evaluation, OpenResult, RunRow, TrajectoryStore
from agentrl.types import EpisodeEnd, Lineage, Opened, Outcome, Termination

NO_CAPACITY = "no_capacity"
WATCH_S = 0.25
GATHER_S = 0.03
"""Places that come free within this time are filled by one call; new weights free a batch of them at once."""
LOG_S = 10.0


@dataclass
class RolloutWorker:
    """Serves training episodes, or one evaluation after another when ``evaluate`` is set."""

    store: TrajectoryStore
    run: RunRow
    name: str
    engine: Engine
    runner: EpisodeRunner
    lineage: Lineage
    concurrency: int
    log: ProcessLog
    evaluate: bool = False
    poll_s: float = 2.0
    """Bounds what a lost wake-up costs."""
    refresh_every: int = 1
    """The newest weights are loaded once they are this many policy updates ahead."""
    _running: dict[UUID, tuple[Opened, asyncio.Task[None]]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: Counter[str] = field(default_factory=Counter)
    _refusal: str | None = None
    _starving: bool = False
    _room: bool = True
    """Whether an episode that ended may have made room for another one."""
    _failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        self._freshness = Freshness(
            self.store, self.run, self.name, self.engine, self.log, poll_s=self.poll_s, refresh_every=self.refresh_every
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then release everything."""
        loop = asyncio.get_running_loop()

        def woken(change: Change) -> None:
            loop.call_soon_threadsafe(self._woken, change)

        subscription = self.store.subscribe(self.run.id, woken)
        try:
            await self._serve(stop)
        finally:
            await asyncio.to_thread(subscription.close)

    def _woken(self, change: Change) -> None:
        if change == "policy":
            self._freshness.announced.set()  # it asks for episodes once the engine holds what it should
            self._moved.set()
        elif change == "items" and self.run.spec.group_extra:
            self._closed.set()  # a group that is complete needs its stragglers no more
        elif change == "evaluation":
            self._asked.set()

    async def _serve(self, stop: asyncio.Event) -> None:
        leases = keep_leases(self.store, self.run, self.name, self._held, self._lost, self._closed)
        background = [asyncio.create_task(t) for t in (leases, self._report(), self._watch_failures())]
        await self._freshness.record(pinned=self.evaluate)
        if not self.evaluate:
            background.append(asyncio.create_task(self._freshness.keep(self._starved, self._looked)))
            doomed = drop_stale(self.store, self.run, self.name, self._moved, self._stale, self._closed)
            background.append(asyncio.create_task(doomed))
        work = asyncio.create_task(self._evaluations() if self.evaluate else self._training())
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([work, stopped, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopped, *background):
            task.cancel()
        await asyncio.gather(work, stopped, *background, return_exceptions=True)
        await self._release()
        for task in done - {stopped}:
            task.result()

    async def _training(self) -> None:
        while True:
            self._changed.clear()
            self._loaded.clear()
            free = self.concurrency - len(self._running)
            if free:
                opened = await self._opened(
                    self.store.open_episodes,
                    self.run.id,
                    worker=self.name,
                    request=uuid4(),
                    n=free,
                    engine_version=self.engine.version,
                    lineage=self.lineage,
                )
                self._start(opened)
                self._learn_room(opened, free)
            await self._change()

    async def _opened(self, ask: Callable[..., OpenResult], *arguments: Any, **named: Any) -> OpenResult:
        """The store's answer. What it opens for a worker that is stopped meanwhile is left to others."""
        asking = asyncio.create_task(asyncio.to_thread(ask, *arguments, **named))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(StoreError):
                await asyncio.gather(*(self._leave(episode) for episode in (await asking).episodes))
            raise

    def _learn_room(self, opened: OpenResult, asked: int) -> None:
        """A trajectory that waits for its training still fills its place, so an end makes room only while no limit was met."""
        spec = self.run.spec
        parked = any(episode.n_segments for episode in opened.episodes)  # they come alone: there may be more to open
        unlimited = spec.lag_bound is None and spec.ahead is None
        self._room = parked or unlimited or len(opened.episodes) == asked
        if parked or (self._room and opened.episodes and len(self._running) < self.concurrency):
            self._changed.set()  # some ended meanwhile
        starving, self._starving = self._starving, self._starved()
        if self._starving and not starving:
            self._freshness.announced.set()  # weights that were not due are now

    async def _change(self) -> None:
        """Until it may be worth asking again."""
        await wait_for(self._changed, self.poll_s)
        await wait_for(self._loaded, GATHER_S)

    def _looked(self, loaded: bool) -> None:
        if loaded:
            self._loaded.set()
        self._changed.set()

    async def _evaluations(self) -> None:
        while True:
            self._asked.clear()
            evaluation = await asyncio.to_thread(self.store.pending_evaluation, self.run.id)
            # Without anything to do its last episodes are somebody else's.
            if evaluation is None or not await self._serve_evaluation(evaluation):
                await wait_for(self._asked, self.poll_s)

    async def _serve_evaluation(self, evaluation: Evaluation) -> bool:
        """Until nothing of it is left to open or runs here; whether anything did."""
        version = await asyncio.to_thread(self.store.version, self.run.id, evaluation.version)
        if self.engine.version != version.version:
            try:
                await self.engine.load(version)
            finally:
                await self._freshness.record(pinned=True)
        served = False
        while True:
            self._changed.clear()
            opened = await self._opened(
                self.store.open_evaluation_episodes,
                evaluation.id,
                worker=self.name,
                request=uuid4(),
                n=self.concurrency - len(self._running),
                lineage=self.lineage,
            )
            self._start(opened)
            if not self._running and not opened.episodes:
                return served
            served = True
            await self._change()

    def _start(self, opened: OpenResult) -> None:
        self._refusal = opened.refusal
        for episode in opened.episodes:
            task = asyncio.create_task(self._run(episode))
            self._running[episode.trajectory] = (episode, task)

    async def _run(self, episode: Opened) -> None:
        dropped = True
        try:
            end = await self.runner.run(episode)
            self._ended[end.termination.value] += 1
            failed = end.outcome is Outcome.INFRASTRUCTURE
            dropped = failed or end.n_segments == 0  # without an action there is nothing to train on
            cause = self.runner.causes.pop(episode.trajectory, None)
            if failed and end.error is not None:
                self._failures.failed(episode.trajectory, end.error, cause)
            else:
                self._failures.ended_well()
        except Fenced as error:
            self._ended["fenced"] += 1
            self.log.warning("episode lost its lease", trajectory=str(episode.trajectory), error=str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the boundary of one episode: anything unforeseen is a row, not a crash
            self._ended["failed"] += 1
            self.log.error("episode failed", trajectory=str(episode.trajectory), task=episode.task.id)
            self._failures.failed(episode.trajectory, f"{type(error).__name__}: {error}", error)
            await self._complete_failed(episode, f"{type(error).__name__}: {error}")
        finally:
            self._running.pop(episode.trajectory, None)
            if self._room or dropped or self.evaluate or not self._running:
                self._changed.set()

    async def _watch_failures(self) -> None:
        while self._failures.verdict is None:
            await asyncio.sleep(WATCH_S)
        raise self._failures.verdict

    async def _complete_failed(self, episode: Opened, error: str, *, aborted: bool = False) -> None:
        termination = Termination.ABORTED if aborted else Termination.FAILED
        end = EpisodeEnd(
            n_segments=-1,
            termination=termination,
            outcome=Outcome.INFRASTRUCTURE,
            error=error,
            retryable=episode.trajectory not in self.runner.unrepeatable,
        )
        try:
            await asyncio.to_thread(self.store.complete, episode, end)
        except StoreError as refused:
            self.log.warning("completion refused", trajectory=str(episode.trajectory), error=str(refused))

    def _starved(self) -> bool:
        return self._refusal == NO_CAPACITY and not self._running

    def _held(self) -> dict[UUID, int]:
        return {episode.trajectory: episode.fence for episode, _ in self._running.values()}

    def _stale(self, trajectory: UUID) -> None:
        if trajectory in self._running:
            self._ended["stale"] += 1
            self.log.info("episode can't be trained on any more", trajectory=str(trajectory))
            self._running[trajectory][1].cancel()

    def _lost(self, trajectory: UUID) -> None:
        if trajectory in self._running:
            self.log.warning("lease lost", trajectory=str(trajectory))
            self._running[trajectory][1].cancel()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(LOG_S)
            counts = await asyncio.to_thread(self.store.counts, self.run.id)
            self.log.gauge(queue_length=sum(n for place, n in counts.items() if place.value == "ready"))
            self.log.info(
                "rollout", running=len(self._running), refusal=self._refusal, ended=dict(self._ended), **self.runner.metrics()
            )

    async def _release(self) -> None:
        running = list(self._running.values())
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)
        await asyncio.gather(*(self._leave(episode) for episode, task in running if task.cancelled()))

    async def _leave(self, episode: Opened) -> None:
        if episode.trajectory not in self.runner.unrepeatable:
            try:
                if await asyncio.to_thread(self.store.park, episode):
                    return
            except StoreError as refused:
                self.log.warning("parking refused", trajectory=str(episode.trajectory), error=str(refused))
        await self._complete_failed(episode, "the worker was stopped", aborted=True)
