"""Several threads and clients at once: no double claim, no exceeded bound, no lost effect."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from store_bench import Bench, PostgresWorld, World, graded, keys, segment

from agentrl.errors import Fenced, SegmentConflict, StoreError
from agentrl.store.postgres import PostgresStore
from agentrl.store.schema_setup import REVISION
from agentrl.types import EpisodeEnd, Outcome, Place, Termination


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of calls that start at the same moment, errors included."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except StoreError as e:
            return e

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_concurrent_opens__bound_never_exceeded_and_tasks_distinct(world: World) -> None:
    bench = world.bench(lag_bound=3, batch_min=4, batch_max=4, n_tasks=100)
    results = together([lambda i=i: bench.ask(5, worker=f"w{i}") for i in range(8)])
    episodes = [e for r in results for e in r.episodes]
    assert len(episodes) == 16
    assert sorted(e.task_index for e in episodes) == list(range(16))
    assert len({e.trajectory for e in episodes}) == 16
    bench.check()


def test_same_request_at_the_same_time__opened_once(world: World) -> None:
    bench = world.bench()
    request = uuid.uuid4()
    results = together([lambda: bench.ask(2, request=request)] * 4)
    assert all(r == results[0] for r in results)
    assert bench.place(Place.LIVE) == 2


def test_same_segment_at_the_same_time__stored_once(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    results = together([lambda: world.store.write_segment(episode, segment(0))] * 6)
    assert sorted(results) == [False] * 5 + [True]
    other = segment(0, action_text="changed")
    assert isinstance(together([lambda: world.store.write_segment(episode, other)] * 2)[0], SegmentConflict)


def test_many_writers__each_gets_its_own_answer(world: World) -> None:
    """Calls that share a transaction do not share errors."""
    bench = world.bench(lag_bound=None, max_running=40, n_tasks=40)
    episodes = bench.open(40)
    bad = set(range(0, 40, 7))
    results = together(
        [lambda i=i, e=e: world.store.write_segment(e, segment(1 if i in bad else 0)) for i, e in enumerate(episodes)]
    )
    for i, result in enumerate(results):
        assert (type(result).__name__ == "SegmentGap") if i in bad else (result is True)
    ended = together([lambda e=e: world.store.complete(e, graded(1)) for e in episodes])
    for i, result in enumerate(ended):
        assert (type(result).__name__ == "IncompleteTrajectory") if i in bad else (result is Place.READY)
    bench.check()


def test_same_claim_at_the_same_time__one_of_them_holds_the_items(world: World) -> None:
    bench = world.bench(lag_bound=None, batch_min=1, batch_max=3, max_running=30, n_tasks=30)
    for episode in bench.open(30):
        bench.finish(episode)
    claims = together([lambda: world.store.claim(bench.run, bench.fence, n_min=1, n_max=3, lease_s=60)] * 12)
    assert len({tuple(i.item for i in claim.items) for claim in claims}) == 1
    renewed = together([lambda c=c: world.store.renew_leases(bench.run, bench.fence, keys(c.items), 60) for c in claims])
    assert sorted(type(r).__name__ for r in renewed) == ["CommitRefused"] * 11 + ["NoneType"]
    assert (bench.place(Place.LEASE), bench.place(Place.READY)) == (3, 27)


def test_same_commit_at_the_same_time__one_step(world: World) -> None:
    bench = world.bench()
    for episode in bench.open(2):
        bench.finish(episode)
    claim = bench.claim()
    results = together([lambda: bench.commit(claim.items, step=1)] * 4)
    assert sorted(r.repeated for r in results) == [False, True, True, True]
    assert bench.place(Place.CONSUMED) == 2


def test_group_members_ending_at_the_same_time__group_becomes_ready_once(world: World) -> None:
    bench = world.bench(group_size=6, batch_min=6, batch_max=6, lag_bound=0)
    for _ in range(3):
        episodes = bench.open()
        for episode in episodes:
            world.store.write_segment(episode, segment(0, bench.version))
        places = together([lambda e=e: world.store.complete(e, graded(1)) for e in episodes])
        assert sorted(places).count(Place.READY) == 1
        bench.commit(bench.claim().items)
        bench.publish()
    bench.check()


def test_group_members_failing_at_the_same_time__no_seat_lost(world: World) -> None:
    bench = world.bench(group_size=4, batch_min=4, batch_max=4, lag_bound=0, max_attempts=2)
    failed = EpisodeEnd(0, Termination.FAILED, Outcome.INFRASTRUCTURE)
    first = bench.open()
    together([lambda e=e: world.store.complete(e, failed) for e in first])
    again = bench.open()
    assert sorted((e.seat, e.attempt) for e in again) == [(i, 2) for i in range(4)]
    together([lambda e=e: world.store.complete(e, failed) for e in again])
    assert bench.place(Place.DROPPED) == 8
    assert {e.attempt for e in bench.open()} == {1}
    bench.check()


def _work(bench: Bench, worker: str, stop: threading.Event) -> None:
    while not stop.is_set():
        newest = bench.store.newest_version(bench.run)
        episodes = bench.open(3, worker=worker, engine=newest.version)
        if not episodes:
            stop.wait(0.01)
        for i, episode in enumerate(episodes):
            with suppress(Fenced):  # two updates came meanwhile, and its place went to another one
                if (episode.seed + i) % 9 == 0:
                    bench.store.complete(episode, EpisodeEnd(0, Termination.FAILED, Outcome.INFRASTRUCTURE))
                else:
                    bench.finish(episode, version=newest.version)


@pytest.mark.parametrize("group_size", [1, 2])
def test_whole_loop_with_several_workers__bound_and_conservation_hold(world: World, group_size: int) -> None:
    steps = 8
    bench = world.bench(lag_bound=1, batch_min=4, batch_max=4, group_size=group_size, target_steps=steps, n_tasks=5)
    stop = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(_work, bench, f"w{i}", stop) for i in range(3)]
        try:
            while world.store.find_run(bench.spec.name).step < steps:
                bench.check()
                conservation = world.store.conservation(bench.run)
                over = (Place.CONSUMED, Place.DROPPED)
                assert sum(n for p, n in conservation.places.items() if p not in over) <= 8
                claim = bench.claim()
                if claim.items:
                    assert max(i.lag for i in claim.items) <= 1
                    world.store.renew_leases(bench.run, bench.fence, keys(claim.items), 60)
                    bench.commit(claim.items)
                    bench.publish()
                else:
                    assert claim.waiting == "rollouts"
                    if world.kind == "memory":
                        world.advance(bench, 0.02)  # its clock stands still, and what is stale would never be reaped
                    stop.wait(0.005)
        finally:
            stop.set()
    for worker in workers:
        worker.result()
    bench.check()
    assert bench.place(Place.CONSUMED) == 4 * steps


def test_processes_that_start_at_once__one_schema(postgres: PostgresWorld, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(f"{postgres.kind}_server")
    url = server.database()
    stores = together([lambda: PostgresStore(url, pool_size=1)] * 4)
    assert stores[0].rows("select version_num from agentrl.alembic_version ") == [(REVISION,)]
    for store in stores:
        store.close()


def test_claim_while_the_last_one_arrives__takes_all_or_waits(postgres: PostgresWorld) -> None:
    """'Nothing more can arise' is said of the same moment that the items are taken from."""
    for _ in range(40):
        bench = postgres.bench(n_tasks=2, lag_bound=None, target_steps=1)
        first, last = bench.open(2)
        bench.finish(first)
        postgres.store.write_segment(last, segment(0, bench.version))
        _, claim = together([lambda b=bench, e=last: b.store.complete(e, graded(1)), bench.claim])
        assert (len(claim.items), claim.waiting) in ((2, None), (0, "rollouts"))
