"""Leases, fences and reaping: dead workers lose their episodes, stale ones change nothing."""

from __future__ import annotations

import pytest
from store_bench import PostgresWorld, World, graded, keys, no_grace, segment

from agentrl.errors import Fenced
from agentrl.types import Place


def test_lapsed_episode__dropped_and_retried(world: World) -> None:
    bench = world.bench(lease_s=60)
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment())
    world.advance(bench, 61)
    (again, *_) = bench.open(1, worker="other")
    assert (again.task_index, again.attempt) == (episode.task_index, 2)
    assert world.drop_reasons(bench) == {"infrastructure": 1}
    with pytest.raises(Fenced):
        world.store.write_segment(episode, segment(1))
    with pytest.raises(Fenced):
        world.store.complete(episode, graded(1))
    assert bench.finish(again) is Place.READY
    bench.check()


def test_dead_worker_whose_name_is_used_again__its_episodes_come_back(world: World) -> None:
    """Recovery looks at leases, not at workers: the new process of that name keeps only what it opened itself."""
    bench = world.bench(lease_s=60)
    (dead,) = bench.open(1, worker="host:7")
    (alive,) = bench.open(1, worker="host:7")
    for _ in range(2):
        world.advance(bench, 40)
        assert world.store.renew_episodes("host:7", {alive.trajectory: alive.fence}) == set()
    (again,) = bench.open(1, worker="host:7")
    assert (again.task_index, again.attempt) == (dead.task_index, 2)
    with pytest.raises(Fenced):
        world.store.write_segment(dead, segment())
    assert bench.finish(alive) is Place.READY
    bench.check()


def test_lapsed_but_not_yet_reaped__write_is_accepted(world: World) -> None:
    bench = world.bench(lease_s=60)
    (episode,) = bench.open(1)
    world.advance(bench, 61)
    assert world.store.write_segment(episode, segment())
    bench.open(1)
    assert world.drop_reasons(bench) == {}


def test_write_and_renew__keep_an_episode_alive(world: World) -> None:
    bench = world.bench(lease_s=60)
    a, b, c = bench.open(3)
    for _ in range(3):
        world.advance(bench, 40)
        world.store.renew_episodes("w", {a.trajectory: a.fence})
        world.store.write_segment(b, segment(0))
    bench.open(1)
    assert world.store.renew_episodes("w", {e.trajectory: e.fence for e in (a, b, c)}) == {c.trajectory}


def test_renew_by_another_worker_or_fence__lost(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    assert world.store.renew_episodes("w", {}) == set()
    assert world.store.renew_episodes("thief", {episode.trajectory: episode.fence}) == {episode.trajectory}
    assert world.store.renew_episodes("w", {episode.trajectory: episode.fence + 1}) == {episode.trajectory}
    assert world.store.renew_episodes("w", {episode.trajectory: episode.fence}) == set()


def test_lapsed_lease_of_items__returned_and_charged(world: World) -> None:
    bench = world.bench(max_lease_attempts=2, lag_bound=0)
    for episode in bench.open():
        bench.finish(episode)
    claimed = bench.claim(lease_s=30)
    world.advance(bench, 31)
    again = bench.claim(lease_s=30)
    assert {i.item for i in again.items} == {i.item for i in claimed.items}
    assert {i.token for i in again.items} != {i.token for i in claimed.items}
    world.advance(bench, 31)
    bench.claim()
    assert world.drop_reasons(bench) == {"max_attempts": 2}
    bench.check()


def test_released_items__keep_their_attempts(world: World) -> None:
    bench = world.bench(max_lease_attempts=1, lag_bound=0)
    for episode in bench.open():
        bench.finish(episode)
    for step in (1, 2, 3):
        claim = bench.claim()
        bench.commit([], policy=False, step=step, released=keys(claim.items))
    assert bench.place(Place.READY) == 2


def test_too_old__dropped_wherever_it_waits(world: World) -> None:
    bench = world.bench(max_age_s=100, lease_s=10_000, lag_bound=3)
    live, ready, job = bench.open(3)
    bench.finish(ready)
    world.store.write_segment(job, segment())
    world.advance(bench, 90)
    fresh = bench.open(1)
    world.advance(bench, 11)
    bench.claim()
    assert world.drop_reasons(bench) == {"too_old": 3}
    assert world.store.renew_episodes("w", {e.trajectory: e.fence for e in (live, *fresh)}) == {live.trajectory}
    bench.check()


def test_reaping__at_most_once_a_second(world: World) -> None:
    bench = world.bench(lease_s=60, lag_bound=3)
    bench.open(1)
    world.advance(bench, 61)
    world.advance(bench, -61)
    first, second = bench.open(1), bench.open(1)
    assert first
    assert second
    assert world.drop_reasons(bench) == {}


def test_reaping__of_what_got_out_of_range_waits_for_nothing(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=2, batch_max=2, n_tasks=20)
    *trained, late, other = bench.open()
    root = bench.version
    for _ in range(2):
        for episode in trained[:2]:
            bench.finish(episode)
        bench.commit(bench.claim().items)
        bench.publish()
        trained = [*trained[2:], *bench.open()]
    places = len(bench.open())
    bench.finish(late, version=root)
    assert places + len(bench.open()) == 1, "the place of the late one is free at once"
    assert world.drop_reasons(bench) == {"stale": 1}
    bench.finish(other)
    bench.check()


def test_server_outage__living_workers_are_not_reaped(postgres: PostgresWorld) -> None:
    """Every lease lasts until one lease after the server's start."""
    bench = postgres.bench(lease_s=3600)
    (episode,) = bench.open(1)
    postgres.advance(bench, 7200)
    with postgres.store.transaction() as connection:
        connection.execute(
            "create or replace function agentrl.server_started_v1() returns timestamptz language sql stable as"
            " $$ select pg_postmaster_start_time() $$"
        )
    try:
        bench.open(1)
        assert postgres.drop_reasons(bench) == {}
        assert postgres.store.write_segment(episode, segment())
    finally:
        no_grace(postgres.store)


def test_one_lost_worker__progress_within_the_lease(world: World) -> None:
    """liveness: with strictly synchronous batches one dead worker holds the batch for one lease only."""
    bench = world.bench(lag_bound=0, lease_s=60)
    lost, kept = bench.open()
    bench.finish(kept)
    assert bench.claim().waiting == "rollouts"
    assert bench.ask().refusal == "no_capacity"
    world.advance(bench, 61)
    (again,) = bench.open()
    assert again.task_index == lost.task_index
    bench.finish(again)
    assert len(bench.claim().items) == 2
