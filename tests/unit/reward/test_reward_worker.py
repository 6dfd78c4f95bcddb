"""A reward worker over a store in memory: verdicts, failures that are never a reward, leases, stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from agentrl.environment import Environment, Episode, Message, Reward, Task
from agentrl.environment.evidence import pack
from agentrl.errors import EnvironmentFault
from agentrl.monitor.log import ProcessLog
from agentrl.reward.worker import RewardWorker
from agentrl.store.contract import RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.types import EpisodeEnd, Lineage, Opened, Outcome, Place, Sampling, Segment, Termination
from sandboxes.contract import Sandbox
from sandboxes.local import UnsafeLocal
from sandboxes.pool import Pool

LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())


class Graded(Environment):
    """What a grading does stands in the episode's state: a number is the reward, "fail" raises, "hang" never ends."""

    grade_timeout_s = 30.0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task(f"t{i}", {}, split) for i in range(n)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "go")]

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        does = episode.state.does
        self.calls.append(str(does))
        if does == "fail":
            raise RuntimeError("the judge said nonsense")
        if does == "once" and self.calls.count("once") == 1:
            raise RuntimeError("not yet")
        if does == "later" and self.calls.count("later") > 1:
            await self.gate.wait()
        elif does == "later":
            raise RuntimeError("not yet")
        if does == "hang":
            await asyncio.Event().wait()
        if does == "gate":
            await self.gate.wait()
        return Reward(1.0 if isinstance(does, str) else float(does), True)


class Case:
    """A run whose episodes have ended; ``serving`` runs a worker on it."""

    def __init__(self, folder: Path, *, max_attempts: int = 2, **worker: Any) -> None:
        self.environment, self.store, self.folder = Graded(), MemoryStore(), folder
        spec = RunSpec("r", "graded", {}, "h", 0, lag_bound=9, batch_min=8, batch_max=8, max_attempts=max_attempts)
        self.run = self.store.create_run(spec, {"train": self.environment.tasks("train", 0, 9)})
        start = self.store.start_trainer(self.run.id, owner="t", lease_s=60, checkpoint=None)
        self.version = self.store.stage_version(self.run.id, start.fence, parent=None, updates=0, uri="u", checksum="c").version
        self.store.publish_version(self.run.id, start.fence, self.version)
        self.settings = {"lease_s": 30.0, "retry_s": 0.0, "poll_s": 0.05} | worker

    def ended(self, *does: object, evidence: bool = True) -> list[UUID]:
        """Episodes that ended, each to be graded as ``does`` says."""
        opened = self.store.open_episodes(
            self.run.id, worker="w", request=uuid4(), n=len(does), engine_version=self.version, lineage=LINEAGE
        ).episodes
        for one, what in zip(opened, does, strict=True):
            self._end(one, what, evidence)
        return [one.trajectory for one in opened]

    def _end(self, opened: Opened, does: object, evidence: bool) -> None:
        ids = np.arange(2, dtype=np.int32)
        versions = np.full(2, self.version, np.int32)
        self.store.write_segment(opened, Segment(0, ids, ids, np.zeros(2, np.float32), versions))
        episode = Episode(opened.task, ended=Termination.TERMINATED)
        episode.state.does = does
        packed = pack("graded", episode) if evidence else None
        end = EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, evidence=packed)
        assert self.store.complete(opened, end) is Place.GRADE_JOB

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RewardWorker]:
        pool, stop = Pool(UnsafeLocal(), 1), asyncio.Event()
        log = ProcessLog(self.folder, "reward-0")
        worker = RewardWorker(self.store, self.run, f"w-{uuid4()}", self.environment, pool, log, **self.settings)
        serving = asyncio.create_task(worker.serve(stop))
        try:
            yield worker
        finally:
            stop.set()
            await asyncio.gather(serving, return_exceptions=True)
            await pool.close()
        serving.result()

    def count(self, place: Place) -> int:
        return self.store.conservation(self.run.id).places[place]

    def reward(self, trajectory: UUID) -> float | None:
        stored = self.store.trajectory(trajectory)
        assert stored is not None
        return None if stored.reward is None else stored.reward.value

    def reasons(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for episode in self.store._runs[self.run.id].episodes.values():
            if episode.drop is not None:
                found[episode.drop.reason.value] = found.get(episode.drop.reason.value, 0) + 1
        return found


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def test_verdict__is_stored_and_the_trajectory_is_ready(tmp_path: Path) -> None:
    case = Case(tmp_path)
    a, b = case.ended(0.25, 0.75)
    async with case.serving():
        await eventually(lambda: case.count(Place.READY) == 2)
        (c,) = case.ended(0.5)
        await eventually(lambda: case.count(Place.READY) == 3)
    assert [case.reward(t) for t in (a, b, c)] == [0.25, 0.75, 0.5]


async def test_woken__by_what_ends_and_not_by_the_clock(tmp_path: Path) -> None:
    case = Case(tmp_path, poll_s=3600.0)
    async with case.serving():
        await asyncio.sleep(0.2)
        case.ended(1.0)
        await eventually(lambda: case.count(Place.READY) == 1)


async def test_one_failure__touches_no_other_and_is_never_a_reward(tmp_path: Path) -> None:
    case = Case(tmp_path)
    failing, *others = case.ended("fail", *[1.0] * 7)
    async with case.serving() as worker:
        await eventually(lambda: case.count(Place.READY) == 7 and case.count(Place.DROPPED) == 1)
        assert worker.graded == {"graded": 7, "failed": 2, "dropped": 1}
    assert case.reasons() == {"ungraded": 1}
    assert case.reward(failing) is None
    assert [case.reward(t) for t in others] == [1.0] * 7
    assert case.environment.calls.count("fail") == 2, "as many attempts as the run allows"


async def test_one_failure__a_grader_that_hangs_is_cut_off_and_named(tmp_path: Path) -> None:
    case = Case(tmp_path, max_attempts=1)
    case.environment.grade_timeout_s = 0.2
    case.ended("hang", *[1.0] * 7)
    async with case.serving():
        await eventually(lambda: case.count(Place.READY) == 7 and case.count(Place.DROPPED) == 1)
    assert "did not return within 0.2 s" in (tmp_path / "reward-0.jsonl").read_text()


async def test_one_failure__what_fails_once_is_graded_at_the_second_attempt(tmp_path: Path) -> None:
    case = Case(tmp_path)
    (once,) = case.ended("once")
    async with case.serving():
        await eventually(lambda: case.count(Place.READY) == 1)
    assert case.reward(once) == 1.0


async def test_patient_retry__the_place_of_a_failed_grading_is_free_while_it_waits(tmp_path: Path) -> None:
    case = Case(tmp_path, concurrency=1, retry_s=3600.0)
    case.ended("fail")
    async with case.serving():
        await eventually(lambda: case.environment.calls == ["fail"])
        case.ended(1.0)
        await eventually(lambda: case.count(Place.READY) == 1)
        assert case.count(Place.GRADE_JOB) == 1
        assert case.environment.calls == ["fail", "1.0"]


async def test_patient_retry__a_job_that_comes_again_at_once_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path)
    (later,) = case.ended("later")
    claim, fail, again = case.store.claim_grades, case.store.fail_grade, threading.Event()

    def claiming(*given: Any, **named: Any) -> Any:
        jobs = claim(*given, **named)
        if any(job.attempt == 2 for job in jobs):
            again.set()
        return jobs

    def failing(*given: Any) -> bool:
        kept = fail(*given)
        again.wait(20)
        time.sleep(0.2)  # the second grading begins before the first one is tidied up
        return kept

    monkeypatch.setattr(case.store, "claim_grades", claiming)
    monkeypatch.setattr(case.store, "fail_grade", failing)
    async with case.serving():
        await eventually(lambda: len(case.environment.calls) == 2)
        await asyncio.sleep(0.5)  # several claims, which free what the worker doesn't name
        assert len(case.environment.calls) == 2
        case.environment.gate.set()
        await eventually(lambda: case.count(Place.READY) == 1)
    assert case.reward(later) == 1.0


async def test_without_evidence__it_is_ungraded_with_the_reason(tmp_path: Path) -> None:
    case = Case(tmp_path, max_attempts=1)
    case.ended(1.0, evidence=False)
    case.ended(1.0)
    async with case.serving():
        await eventually(lambda: case.count(Place.DROPPED) == 1 and case.count(Place.READY) == 1)
    assert "an outside agent ended the episode without a reward" in (tmp_path / "reward-0.jsonl").read_text()


async def test_leases_alive__a_long_grading_keeps_its_job(tmp_path: Path) -> None:
    case = Case(tmp_path, lease_s=1.5)
    case.ended("gate")
    async with case.serving():
        await eventually(lambda: case.environment.calls == ["gate"])
        await asyncio.sleep(3.0)
        assert case.store.claim_grades(case.run.id, worker="other", n=1, lease_s=60) == []
        case.environment.gate.set()
        await eventually(lambda: case.count(Place.READY) == 1)


async def test_leases_alive__a_lost_job_is_stopped_and_another_worker_s_verdict_counts(tmp_path: Path) -> None:
    case = Case(tmp_path, lease_s=1.5)
    (episode,) = case.ended("gate")
    async with case.serving() as worker:
        await eventually(lambda: case.environment.calls == ["gate"])
        with case.store._lock:  # as if it had lapsed
            case.store._runs[case.run.id].episodes[episode].job.fence = None
            case.store._runs[case.run.id].episodes[episode].job.worker = None
        (job,) = case.store.claim_grades(case.run.id, worker="other", n=1, lease_s=60)
        await eventually(lambda: not worker._held)
        case.store.grade(episode, job.fence, Reward(0.5))
        case.environment.gate.set()
    assert case.reward(episode) == 0.5


async def test_clean_release__a_stop_gives_all_jobs_back_at_no_charge(tmp_path: Path) -> None:
    case = Case(tmp_path, retry_s=3600.0)
    case.ended("gate", "fail")
    async with case.serving():
        await eventually(lambda: set(case.environment.calls) == {"gate", "fail"})
    jobs = case.store.claim_grades(case.run.id, worker="other", n=9, lease_s=60)
    assert [job.attempt for job in jobs] == [1, 1]


async def test_clean_release__a_claim_under_way_is_given_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path)
    case.ended("gate")
    claim, asked, gate = case.store.claim_grades, threading.Event(), threading.Event()

    def slow(*given: Any, **named: Any) -> Any:
        asked.set()
        gate.wait(20)
        return claim(*given, **named)

    monkeypatch.setattr(case.store, "claim_grades", slow)
    async with case.serving():
        await asyncio.to_thread(asked.wait, 20)
        asyncio.get_running_loop().call_later(0.2, gate.set)
    (job,) = claim(case.run.id, worker="other", n=9, lease_s=60)
    assert job.attempt == 1


async def test_told__an_environment_whose_gradings_all_fail_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentrl.monitor.failures.HOPELESS", 4)
    case = Case(tmp_path, max_attempts=1)
    case.ended(*["fail"] * 4)
    serving = case.serving()
    worker = await serving.__aenter__()
    await eventually(lambda: worker._failures.verdict is not None)
    await asyncio.sleep(1.0)
    with pytest.raises(EnvironmentFault, match=r"4 gradings failed and none ended well; the last one: .*nonsense"):
        await serving.__aexit__(None, None, None)
    assert "grading" in capsys.readouterr().out
