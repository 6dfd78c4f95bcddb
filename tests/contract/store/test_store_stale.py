"""Episodes that no claim would take any more are dropped while they run, and their places are free at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from store_bench import Bench, World, graded, segment

from agentrl.errors import Fenced
from agentrl.types import EpisodeEnd, Opened, Outcome, Place, Termination


def one_at_a_time(world: World, **spec: Any) -> Bench:
    settings: dict[str, Any] = {"lag_bound": 1, "batch_min": 1, "batch_max": 1}
    return world.bench(**(settings | spec))


def steps(bench: Bench, n: int) -> None:
    """Each trains other episodes, with weights of its own, while whatever is open stays open."""
    for _ in range(n):
        for episode in bench.open(bench.spec.group_size, worker="other"):
            bench.finish(episode)
        bench.commit(bench.claim().items)
        bench.publish()


def begun(bench: Bench, n: int = 1, worker: str = "w") -> Sequence[Opened]:
    episodes = bench.open(n, worker=worker)
    for episode in episodes:
        bench.store.write_segment(episode, segment(0, bench.version))
    return episodes


@pytest.mark.parametrize("behind", [1, 2])
def test_running_episode__is_dropped_one_update_after_the_bound(world: World, behind: int) -> None:
    bench = one_at_a_time(world)
    (episode,) = begun(bench)
    steps(bench, behind)
    gone = bench.store.drop_stale(bench.run, "w")
    if behind == 1:
        assert gone == set()
        return
    assert gone == {episode.trajectory}
    assert world.drop_reasons(bench) == {"stale": 1}
    assert bench.place(Place.LIVE) == 0
    bench.check()
    with pytest.raises(Fenced):
        bench.store.write_segment(episode, segment(1, bench.version))
    with pytest.raises(Fenced):
        bench.store.complete(episode, graded(1))
    assert bench.store.drop_stale(bench.run, "w") == set()


def test_its_task_starts_again__with_an_attempt_of_its_own_until_they_are_used_up(world: World) -> None:
    bench = one_at_a_time(world, max_attempts=2)
    (first,) = begun(bench)
    steps(bench, 2)
    bench.store.drop_stale(bench.run, "w")
    (second,) = begun(bench)
    assert (second.task.id, second.attempt) == (first.task.id, 2)
    steps(bench, 2)
    bench.store.drop_stale(bench.run, "w")
    (third,) = bench.open(1)
    assert (third.task.id == first.task.id, third.attempt) == (False, 1)


def test_only_the_workers_own__and_only_what_sampled_something(world: World) -> None:
    bench = one_at_a_time(world, lag_bound=3)
    (mine,), (other,) = begun(bench), begun(bench, worker="x")
    (silent,) = bench.open(1)
    for _ in range(4):
        bench.commit([], policy=True)
        bench.publish()
    assert bench.store.drop_stale(bench.run, "w") == {mine.trajectory}
    assert bench.store.renew_episodes("x", {other.trajectory: other.fence}) == set()
    assert bench.store.renew_episodes("w", {silent.trajectory: silent.fence}) == set()
    assert bench.store.drop_stale(bench.run, "x") == {other.trajectory}


@pytest.mark.parametrize("spec", [{"staleness_mode": "segment_mask"}, {"lag_bound": None}])
def test_nothing_is_dropped__where_older_tokens_are_masked_or_nothing_bounds_them(world: World, spec: dict[str, Any]) -> None:
    bench = one_at_a_time(world, **spec)
    (episode,) = begun(bench)
    steps(bench, 3)
    assert bench.store.drop_stale(bench.run, "w") == set()
    world.advance(bench, 2.0)
    bench.claim()
    assert bench.store.renew_episodes("w", {episode.trajectory: episode.fence}) == set()


def test_reaping__collects_running_ones_of_every_worker(world: World) -> None:
    bench = one_at_a_time(world)
    begun(bench, worker="dead")
    steps(bench, 2)
    world.advance(bench, 2.0)
    bench.claim()
    assert world.drop_reasons(bench) == {"stale": 1}
    assert bench.place(Place.LIVE) == 0


def test_reaping__collects_what_waits_for_a_verdict(world: World) -> None:
    bench = one_at_a_time(world)
    (episode,) = begun(bench)
    bench.store.complete(episode, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    (job,) = bench.store.claim_grades(bench.run, worker="judge", n=1, lease_s=1000.0)
    steps(bench, 2)
    world.advance(bench, 2.0)
    bench.claim()
    assert world.drop_reasons(bench) == {"stale": 1}
    assert bench.store.renew_grades({episode.trajectory: job.fence}) == {episode.trajectory}
    bench.check()


def test_group__a_stale_member_starts_again_and_the_fresh_ones_stay(world: World) -> None:
    bench = one_at_a_time(world, group_size=2, batch_min=2, batch_max=2)
    first, second = bench.open(2)
    bench.finish(first)
    steps(bench, 2)
    bench.store.write_segment(second, segment(0, bench.version))
    world.advance(bench, 2.0)
    bench.claim()
    assert world.drop_reasons(bench) == {"stale": 1}
    (again,) = bench.open(1)
    assert (again.group, again.seat, again.attempt) == (first.group, first.seat, 2)
    bench.finish(again)
    assert bench.store.complete(second, graded(1)) is Place.READY
    (item,) = bench.claim().items
    assert {t.id for t in item.trajectories} == {again.trajectory, second.trajectory}


def test_group__that_can_give_a_seat_no_other_attempt_is_given_up(world: World) -> None:
    bench = one_at_a_time(world, group_size=2, batch_min=2, batch_max=2, max_attempts=1)
    first, second = bench.open(2)
    bench.store.write_segment(first, segment(0, bench.version))
    steps(bench, 2)
    assert bench.store.drop_stale(bench.run, "w") == {first.trajectory}
    assert world.drop_reasons(bench) == {"stale": 1, "group_incomplete": 1}
    assert bench.store.renew_episodes("w", {second.trajectory: second.fence}) == {second.trajectory}
    bench.check()
