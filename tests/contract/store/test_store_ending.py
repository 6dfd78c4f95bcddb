"""Outcome classes, retries, groups and the places an end leads to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_bench import CANCELLED, FAILED, LINEAGE, World, graded, segment

from agentrl.types import EpisodeEnd, Outcome, Place, Termination

UNGRADED = EpisodeEnd(1, Termination.TRUNCATED_TOKENS, Outcome.POLICY_ENDED)
FOR_A_REWARD_WORKER = EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED)


@pytest.mark.parametrize(
    ("end", "place"),
    [
        (graded(1), Place.READY),
        (graded(1, 0.0), Place.READY),
        (UNGRADED, Place.READY),
        (FOR_A_REWARD_WORKER, Place.GRADE_JOB),
        (FAILED, Place.DROPPED),
        (CANCELLED, Place.DROPPED),
    ],
)
def test_end_of_a_single_episode__place(world: World, end: EpisodeEnd, place: Place) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment())
    assert not world.store.trajectory(episode.trajectory).ended
    assert world.store.complete(episode, end) is place
    assert bench.place(place) == 1
    read = world.store.trajectory(episode.trajectory)
    assert (read.termination, read.outcome, read.reward) == (end.termination, end.outcome, end.reward)
    assert read.ended
    bench.check()


@pytest.mark.parametrize("end", [graded(1), UNGRADED, FAILED])
def test_sandbox_that_only_the_task_decides__replaces_the_lineages(world: World, end: EpisodeEnd) -> None:
    bench = world.bench()
    named, unnamed = bench.open(2)
    for episode, sandbox in ((named, "docker:sha256:of-the-task"), (unnamed, None)):
        world.store.write_segment(episode, segment())
        world.store.complete(episode, replace(end, sandbox=sandbox))
    stored = [world.store.trajectory(episode.trajectory).lineage.sandbox for episode in (named, unnamed)]
    assert stored == ["docker:sha256:of-the-task", LINEAGE.sandbox]


def test_infrastructure_failure__no_reward_and_retried_up_to_max_attempts(world: World) -> None:
    bench = world.bench(max_attempts=3, n_tasks=3)
    (episode,) = bench.open(1)
    for attempt in (1, 2, 3):
        assert (episode.attempt, episode.task_index) == (attempt, 0)
        assert world.store.complete(episode, FAILED) is Place.DROPPED
        (episode,) = bench.open(1)
    assert (episode.attempt, episode.task_index) == (1, 1), "the seat was given up and a new task took its place"
    assert world.drop_reasons(bench) == {"infrastructure": 3}
    bench.check()


def test_failure_that_must_not_be_retried__seat_given_up(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    end = EpisodeEnd(0, Termination.FAILED, Outcome.INFRASTRUCTURE, error="task is broken", retryable=False)
    world.store.complete(episode, end)
    (following,) = bench.open(1)
    assert (following.task_index, following.attempt) == (1, 1)


def test_no_action_token__dropped_as_zero_action(world: World) -> None:
    bench = world.bench()
    first, second = bench.open(2)
    world.store.write_segment(first, segment(n=0))
    assert world.store.complete(first, UNGRADED) is Place.DROPPED
    assert world.store.complete(second, graded(0)) is Place.DROPPED
    assert world.drop_reasons(bench) == {"zero_action": 2}
    assert [e.attempt for e in bench.open(2)] == [1, 1]


def test_group__ready_only_when_whole(world: World) -> None:
    bench = world.bench(group_size=2)
    a, b = bench.open(2)
    assert a.group == b.group
    assert a.seed != b.seed
    assert bench.finish(a) is Place.GRADED
    assert bench.claim().items == []
    world.store.write_segment(b, segment())
    assert world.store.complete(b, UNGRADED) is Place.READY
    (item,) = bench.claim().items
    assert item.item == a.group
    assert [t.id for t in item.trajectories] == [a.trajectory, b.trajectory]
    bench.check()


def test_group_member_failed__seat_refilled_and_group_completes(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=0)
    a, b = bench.open(2)
    bench.finish(a)
    world.store.complete(b, FAILED)
    (again,) = bench.open(8)
    assert (again.group, again.seat, again.attempt) == (b.group, b.seat, 2)
    assert bench.finish(again) is Place.READY
    assert len(bench.claim().items) == 1
    bench.check()


def test_group_seat_lost_for_good__all_members_dropped(world: World) -> None:
    bench = world.bench(group_size=3, batch_min=3, batch_max=3, lag_bound=1, max_attempts=1)
    a, b, c = bench.open(3)
    bench.finish(a)
    assert world.store.complete(b, FAILED) is Place.DROPPED
    assert world.drop_reasons(bench) == {"infrastructure": 1, "group_incomplete": 2}
    assert world.store.renew_episodes("w", {c.trajectory: c.fence}) == {c.trajectory}
    assert bench.place(Place.LIVE) == 0
    assert all(e.group != a.group for e in bench.open(64))
    bench.check()


def test_group_member_without_actions__seat_refilled(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=0)
    a, b = bench.open(2)
    world.store.complete(a, graded(0))
    bench.finish(b)
    (again,) = bench.open(8)
    assert (again.group, again.seat) == (a.group, a.seat)
    assert bench.finish(again) is Place.READY


def test_conservation(world: World) -> None:
    """created = the sum of the seven places after every single call."""
    bench = world.bench(group_size=2, lag_bound=2, batch_min=2, batch_max=4, max_attempts=2)
    for step in range(3):
        for i, episode in enumerate(bench.open()):
            bench.check()
            if (i + step) % 5 == 0:
                world.store.complete(episode, FAILED)
            else:
                bench.finish(episode)
            bench.check()
        claim = bench.claim()
        bench.check()
        if claim.items:
            bench.commit(claim.items)
            bench.check()
            bench.publish()
    assert world.store.conservation(bench.run).created > 0
