"""The reward worker: claims episodes that ended, grades each in a clean sandbox, writes the verdict.

Invariants
- one_failure: a grading that fails touches no other, and is never a reward of 0; after the run's last attempt the episode is
  dropped as ungraded.
- patient_retry: a failed grading keeps its job for a while before it is tried again, and its place is free meanwhile.
- leases_alive: jobs are renewed every third of the lease; a job that was lost is stopped at once.
- clean_release: a stop gives all jobs back at no charge.
- told: an environment whose gradings all fail ends the run with its error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from agentrl.environment.base import Environment
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.evidence import unpack
from agentrl.environment.grading import grade
from agentrl.errors import EnvironmentFault, Fenced, StoreError
from agentrl.monitor.failures import Failures
from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import Change, GradeJob, RunRow, TrajectoryStore
from agentrl.types import Place, Reward
from sandboxes.contract import SandboxError, SandboxPool

GATHER_S = 0.03
"""Jobs that come, and places that come free, within this time are served by one call."""
LOG_S = 10.0
WATCH_S = 0.25
LONGEST_PAUSE_S = 60.0


@dataclass
class RewardWorker:
    """Grades the episodes of one run; ``name`` is of this process alone."""

    store: TrajectoryStore
    run: RunRow
    name: str
    environment: Environment
    pool: SandboxPool
    log: ProcessLog
    concurrency: int = 64
    lease_s: float = 60.0
    retry_s: float = 2.0
    """Pause after a first failure; it doubles with each further one."""
    poll_s: float = 2.0
    """Bounds what a lost wake-up costs."""
    graded: Counter[str] = field(default_factory=Counter)
    """Jobs by what became of them."""
    _held: dict[int, tuple[GradeJob, asyncio.Task[None]]] = field(default_factory=dict)
    """By fence: a trajectory that was given back may come again before its first grading is tidied up."""
    _pausing: set[int] = field(default_factory=set)
    """Fences of jobs that only wait to be given back."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: Failures = field(default_factory=lambda: Failures("grading"))

    def __post_init__(self) -> None:
        self._queue = queue_for(self.pool)

    async def serve(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set; raises what makes going on senseless."""
        loop = asyncio.get_running_loop()

        def woken(change: Change) -> None:
            if change == "grades":
                loop.call_soon_threadsafe(self._changed.set)

        subscription = self.store.subscribe(self.run.id, woken)
        tasks = [
            asyncio.create_task(work)
            for work in (stop.wait(), self._claiming(), self._renewing(), self._watch_failures(), self._report())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._release()
            await asyncio.to_thread(subscription.close)
        for task in done - {tasks[0]}:
            task.result()

    async def _claiming(self) -> None:
        while True:
            self._changed.clear()
            free = self.concurrency - len(self._held) + len(self._pausing)
            jobs = await self._claim(free) if free > 0 else ()
            for job in jobs:
                self._held[job.fence] = job, asyncio.create_task(self._run(job))
            if len(jobs) < free or free <= 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.poll_s):
                        await self._changed.wait()
                        await asyncio.sleep(GATHER_S)

    async def _claim(self, n: int) -> Sequence[GradeJob]:
        """What the store gives; a stop waits for it, so that nothing is given after the release."""
        ask, held = self.store.claim_grades, list(self._held)
        asking = asyncio.create_task(
            asyncio.to_thread(ask, self.run.id, worker=self.name, n=n, lease_s=self.lease_s, held=held)
        )
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.gather(asking, return_exceptions=True)
            raise

    async def _run(self, job: GradeJob) -> None:
        trajectory = job.trajectory.id
        try:
            reward = await self._graded(job)
            await asyncio.to_thread(self.store.grade, trajectory, job.fence, reward)
            self.graded["graded"] += 1
            self._failures.ended_well()
        except Fenced as error:
            self.graded["fenced"] += 1
            self.log.warning("grading lost its lease", trajectory=str(trajectory), error=str(error))
        except Exception as error:  # the boundary of one grading: anything unforeseen costs this one
            await self._failed(job, error)
        finally:
            self._pausing.discard(job.fence)
            self._held.pop(job.fence, None)
            self._changed.set()

    async def _graded(self, job: GradeJob) -> Reward:
        stored = job.trajectory
        if job.evidence is None:
            raise EnvironmentFault(
                f"task {job.task.id!r}: an outside agent ended the episode without a reward; nothing is there to grade it by"
            )
        episode = unpack(job.evidence, job.task, stored.seed, stored.termination)
        async with boxes_of(self.environment, job.task, self._queue, grading=True) as boxes:
            return await grade(self.environment, episode, boxes.main, boxes.others)

    async def _failed(self, job: GradeJob, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        foreseen = isinstance(error, (SandboxError, EnvironmentFault))
        self.graded["failed"] += 1
        (self.log.warning if foreseen else self.log.error)(
            "grading failed", trajectory=str(job.trajectory.id), task=job.task.id, attempt=job.attempt, why=said
        )
        self._failures.failed(job.trajectory.id, said, error)
        self._pausing.add(job.fence)
        self._changed.set()
        await asyncio.sleep(min(LONGEST_PAUSE_S, self.retry_s * 2 ** min(job.attempt - 1, 16)))
        try:
            again = await asyncio.to_thread(self.store.fail_grade, job.trajectory.id, job.fence, said)
        except StoreError as refused:
            self.log.warning("giving a job back was refused", trajectory=str(job.trajectory.id), error=str(refused))
        else:
            self.graded["dropped"] += not again

    async def _renewing(self) -> None:
        while True:
            await asyncio.sleep(self.lease_s / 3)
            fences = {job.trajectory.id: fence for fence, (job, _) in self._held.items()}
            for trajectory in await asyncio.to_thread(self.store.renew_grades, fences):
                if fences[trajectory] in self._held:
                    self.log.warning("grade job lost", trajectory=str(trajectory))
                    self._held[fences[trajectory]][1].cancel()

    async def _watch_failures(self) -> None:
        while self._failures.verdict is None:
            await asyncio.sleep(WATCH_S)
        raise self._failures.verdict

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(LOG_S)
            counts = await asyncio.to_thread(self.store.counts, self.run.id)
            self.log.info(
                "reward", holds=len(self._held), pausing=len(self._pausing), waiting=counts[Place.GRADE_JOB],
                jobs=dict(self.graded),
                **{f"sandbox_{name}": round(value, 4) for name, value in self.pool.metrics().items()},
            )  # fmt: skip

    async def _release(self) -> None:
        tasks = [task for _, task in self._held.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._claim(0)  # what this worker doesn't name any more is free for others
        except StoreError as refused:
            self.log.warning("giving jobs back was refused", error=str(refused))
