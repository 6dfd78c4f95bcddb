"""Reward workers: jobs under a lease, verdicts once in effect, failures that are never a reward of 0, re-grades."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from store_bench import FAILED, LINEAGE, Bench, World, graded, segment

from agentrl.errors import BadValue, Fenced, IllegalMove, UsageError
from agentrl.types import EpisodeEnd, Opened, Outcome, Place, Reward, Termination

WAITS = EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED)


def waiting(bench: Bench, n: int = 1) -> list[Opened]:
    """Episodes that ended and wait for a verdict."""
    episodes = list(bench.open(n))
    for episode in episodes:
        bench.store.write_segment(episode, segment(0, bench.version))
        assert bench.store.complete(episode, WAITS) is Place.GRADE_JOB
    return episodes


def test_verdict__makes_it_ready_with_its_reward(world: World) -> None:
    bench = world.bench()
    episodes = waiting(bench, 2)
    jobs = world.store.claim_grades(bench.run, worker="judge", n=10, lease_s=60)
    assert [j.trajectory.id for j in jobs] == [e.trajectory for e in episodes]
    assert [j.attempt for j in jobs] == [1, 1]
    for value, job in enumerate(jobs):
        assert world.store.grade(job.trajectory.id, job.fence, Reward(float(value), value > 0, "judge")) is Place.READY
    claim = bench.claim()
    assert [i.trajectories[0].reward.value for i in claim.items] == [0.0, 1.0]
    bench.check()


def test_job__has_the_task_and_what_the_completion_left_to_grade_it_by(world: World) -> None:
    bench = world.bench()
    for evidence in (bytes(range(256)), None):
        (episode,) = bench.open(1)
        bench.store.write_segment(episode, segment(0, bench.version))
        bench.store.complete(episode, replace(WAITS, evidence=evidence))
        (job,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
        assert (job.task, job.evidence) == (episode.task, evidence)
        world.store.fail_grade(episode.trajectory, job.fence, "not yet")
        (again,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
        assert (again.task, again.evidence, again.attempt) == (episode.task, evidence, 2)
        world.store.grade(episode.trajectory, again.fence, Reward(1.0))


@pytest.mark.parametrize("end", [graded(1), EpisodeEnd(1, Termination.TRUNCATED_TURNS, Outcome.POLICY_ENDED)])
def test_evidence__of_what_nobody_is_to_grade_is_refused(world: World, end: EpisodeEnd) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    bench.store.write_segment(episode, segment(0, bench.version))
    with pytest.raises(BadValue, match=r"end\.evidence"):
        bench.store.complete(episode, replace(end, evidence=b"x"))
    assert bench.place(Place.LIVE) == 1


def test_held_job__is_given_to_nobody_else(world: World) -> None:
    bench = world.bench()
    waiting(bench, 2)
    (first,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
    (second,) = world.store.claim_grades(bench.run, worker="b", n=5, lease_s=60)
    assert first.trajectory.id != second.trajectory.id
    assert world.store.claim_grades(bench.run, worker="c", n=5, lease_s=60) == []


def test_lost_reply__gives_the_same_jobs_again_at_no_charge(world: World) -> None:
    bench = world.bench(max_attempts=1)
    first, second = waiting(bench, 2)
    ask = {"worker": "a", "n": 1, "lease_s": 60}
    (lost,) = world.store.claim_grades(bench.run, **ask)
    (job,) = world.store.claim_grades(bench.run, **ask)
    assert (job.trajectory.id, job.attempt) == (first.trajectory, 1)
    assert world.store.renew_grades({first.trajectory: lost.fence}) == {first.trajectory}
    (other,) = world.store.claim_grades(bench.run, **ask, held=[job.fence])
    assert other.trajectory.id == second.trajectory, "what the worker names stays its own"
    for held in (job, other):
        assert world.store.grade(held.trajectory.id, held.fence, Reward(1.0)) is Place.READY
    bench.check()


def test_repeated_verdict__has_its_effect_once(world: World) -> None:
    bench = world.bench()
    (episode,) = waiting(bench)
    (job,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
    for _ in range(2):
        assert world.store.grade(episode.trajectory, job.fence, Reward(1.0, True)) is Place.READY
    assert bench.place(Place.READY) == 1
    bench.check()


def test_late_verdict__is_fenced_after_the_job_was_given_on(world: World) -> None:
    bench = world.bench()
    (episode,) = waiting(bench)
    (late,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=10)
    world.advance(bench, 11.0)
    (job,) = world.store.claim_grades(bench.run, worker="b", n=1, lease_s=10)
    assert (job.attempt, job.trajectory.id) == (2, episode.trajectory)
    with pytest.raises(Fenced):
        world.store.grade(episode.trajectory, late.fence, Reward(0.0))
    assert world.store.grade(episode.trajectory, job.fence, Reward(1.0)) is Place.READY
    assert world.store.trajectory(episode.trajectory).reward.value == 1.0


def test_renewed_job__is_kept(world: World) -> None:
    bench = world.bench()
    (episode,) = waiting(bench)
    (job,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=10)
    for _ in range(3):
        world.advance(bench, 8.0)
        assert world.store.renew_grades({episode.trajectory: job.fence}) == set()
        assert world.store.claim_grades(bench.run, worker="b", n=1, lease_s=10) == []
    assert world.store.renew_grades({episode.trajectory: job.fence + 1, uuid.uuid4(): 1}) != set()


def test_failing_grader__drops_as_ungraded_after_the_last_attempt_and_never_as_zero(world: World) -> None:
    bench = world.bench(max_attempts=2)
    (episode,) = waiting(bench)
    for again in (True, False):
        (job,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
        assert world.store.fail_grade(episode.trajectory, job.fence, "the judge timed out") is again
    assert world.drop_reasons(bench) == {"ungraded": 1}
    assert world.store.trajectory(episode.trajectory).reward is None
    assert world.store.fail_grade(episode.trajectory, job.fence, "again") is True
    bench.check()


def test_group__is_ready_when_its_last_verdict_arrives(world: World) -> None:
    bench = world.bench(group_size=2)
    waiting(bench, 2)
    jobs = world.store.claim_grades(bench.run, worker="a", n=2, lease_s=60)
    places = [world.store.grade(j.trajectory.id, j.fence, Reward(1.0)) for j in jobs]
    assert places == [Place.GRADED, Place.READY]
    assert [len(i.trajectories) for i in bench.claim().items] == [2]


def test_evaluation__is_graded_too(world: World) -> None:
    bench = world.bench()
    e = world.store.request_evaluation(bench.run, version=bench.version, step=0, split="heldout", n=1)
    (episode,) = world.store.open_evaluation_episodes(e.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE).episodes
    world.store.write_segment(episode, segment(0, bench.version))
    assert world.store.complete(episode, WAITS) is Place.GRADE_JOB
    (job,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
    assert world.store.grade(episode.trajectory, job.fence, Reward(0.5, True)) is Place.EVALUATED
    (result,) = world.store.evaluation_results(bench.run)
    assert (result.graded, result.successes, result.mean_reward) == (1, 1, 0.5)


def test_regrade__counts_from_the_next_claim_on(world: World) -> None:
    bench = world.bench()
    a, b = bench.open(2)
    bench.finish(a, value=0.0)
    bench.finish(b, value=0.0)
    world.store.regrade(a.trajectory, Reward(1.0, True, "judge", "2"))
    claim = bench.claim()
    rewards = {t.id: t.reward for i in claim.items for t in i.trajectories}
    assert (rewards[a.trajectory].value, rewards[a.trajectory].grader) == (1.0, "judge")
    assert rewards[b.trajectory].value == 0.0


def test_regrade__only_of_what_has_ended(world: World) -> None:
    bench = world.bench()
    live, failed, *_ = bench.open(2)
    world.store.complete(failed, FAILED)
    (job,) = waiting(bench, 1)
    for trajectory in (live.trajectory, failed.trajectory, job.trajectory):
        with pytest.raises(IllegalMove):
            world.store.regrade(trajectory, Reward(1.0))
    with pytest.raises(UsageError):
        world.store.regrade(uuid.uuid4(), Reward(1.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_reward_that_is_no_number__refused_with_its_name(world: World, value: float) -> None:
    bench = world.bench()
    (episode,) = waiting(bench)
    (job,) = world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60)
    with pytest.raises(BadValue, match=r"reward\.value"):
        world.store.grade(episode.trajectory, job.fence, Reward(value))
    assert bench.place(Place.GRADE_JOB) == 1


def test_graded_in_the_episode__makes_no_job(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0, bench.version))
    assert world.store.complete(episode, graded(1)) is Place.READY
    assert world.store.claim_grades(bench.run, worker="a", n=1, lease_s=60) == []
