"""Admission, order of service, idempotent requests and seeds."""

from __future__ import annotations

import uuid

import pytest
from store_bench import CANCELLED, FAILED, World, segment

from agentrl.errors import UnknownVersion, UsageError
from agentrl.types import Place


def test_open_before_a_version_is_published__refused(world: World) -> None:
    bench = world.bench(started=False)
    bench.start()
    assert bench.ask(1, engine=0).refusal == "no_version"
    staged = world.store.stage_version(bench.run, bench.fence, parent=None, updates=0, uri="w", checksum="c")
    assert bench.ask(1, engine=staged.version).refusal == "no_version"
    world.store.publish_version(bench.run, bench.fence, staged.version)
    assert len(bench.open(1)) == 1


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_open_admission_bound__never_exceeded(world: World, bound: int) -> None:
    bench = world.bench(lag_bound=bound, batch_min=2, batch_max=2)
    assert len(bench.open(64)) == (bound + 1) * 2
    refused = bench.ask(1)
    assert (refused.episodes, refused.refusal) == ([], "no_capacity")
    bench.check()


def test_open_ahead_of_the_round__is_a_setting_of_its_own(world: World) -> None:
    """With a lag bound of 1 and nothing ahead, a round is one batch; what an update leaves behind counts in the next one."""
    bench = world.bench(lag_bound=1, batch_min=3, batch_max=4, ahead=0, n_tasks=20)
    late, *others = bench.open(64)
    assert len(others) == 3
    for episode in others:
        bench.finish(episode)
    claim = bench.claim()
    assert len(claim.items) == 3
    assert bench.ask(64).refusal == "no_capacity"
    bench.commit(claim.items)
    assert bench.ask(64).refusal == "no_capacity"  # its engine is a batch behind
    old, new = bench.version, bench.publish()
    assert len(bench.open(64, engine=new)) == 3
    bench.finish(late, version=old)
    assert [item.lag for item in bench.claim(1, 1).items] == [1]
    bench.check()


@pytest.mark.parametrize(("batch_min", "opens"), [(2, 6), (4, 12)])
def test_open_with_smaller_batches__only_what_updates_surely_take(world: World, batch_min: int, opens: int) -> None:
    bench = world.bench(lag_bound=2, batch_min=batch_min, batch_max=4, n_tasks=50)
    assert len(bench.open(64)) == opens


def test_open_capacity_after_resume__same_as_fresh(world: World) -> None:
    bench = world.bench(lag_bound=2, batch_min=4, batch_max=4, n_tasks=50)
    bench.train(3)
    world.store.release_trainer(bench.run, bench.fence)
    bench.start(owner="second")
    assert bench.store.find_run(bench.spec.name).step == 0
    # 12 returned to ready from the abandoned steps of lag bound 2, or were dropped; what is outstanding limits the rest.
    outstanding = bench.place(Place.READY) + bench.place(Place.LIVE)
    bench.open(64)
    assert bench.place(Place.LIVE) + bench.place(Place.READY) == max(12, outstanding)


def test_open_with_an_engine_behind_the_head__counts_its_lag(world: World) -> None:
    bench = world.bench(lag_bound=1)
    old = bench.version
    bench.train(1)
    # Ready: 2 left over of 4, trained 2. An engine one update behind gives items that are older by one batch.
    assert bench.ask(64, engine=old).refusal == "no_capacity"
    assert len(bench.open(64, engine=bench.version)) == 2


def test_open_strictly_synchronous__one_version_per_batch(world: World) -> None:
    bench = world.bench(lag_bound=0)
    for step in range(4):
        episodes = bench.open()
        assert len(episodes) == 2
        for episode in episodes:
            bench.finish(episode)
        assert bench.ask().refusal == "no_capacity"
        claim = bench.claim()
        versions = {int(v) for i in claim.items for t in i.trajectories for s in t.segments for v in s.versions}
        assert versions == {bench.version}
        assert [i.lag for i in claim.items] == [0, 0]
        bench.commit(claim.items)
        assert bench.ask().refusal == "no_capacity", f"step {step}: the engine still has the old weights"
        bench.publish()


def test_open_unbounded__limited_by_max_running(world: World) -> None:
    bench = world.bench(lag_bound=None, max_running=3)
    episodes = bench.open()
    assert len(episodes) == 3
    bench.finish(episodes[0])
    assert len(bench.open()) == 1


def test_open_target__nothing_beyond_it(world: World) -> None:
    bench = world.bench(lag_bound=3, target_steps=2)
    assert len(bench.open()) == 4
    assert bench.ask().refusal == "target_reached"
    bench2 = world.bench(lag_bound=3, target_steps=2)
    bench2.train(2)
    assert bench2.ask().refusal == "target_reached"
    assert bench2.claim().waiting == "nothing"


def test_open_same_request__same_episodes(world: World) -> None:
    bench = world.bench()
    request = uuid.uuid4()
    first = bench.ask(2, request=request)
    assert bench.ask(2, request=request) == first
    assert bench.place(Place.LIVE) == 2
    with pytest.raises(UsageError, match="was made by worker"):
        bench.ask(2, request=request, worker="another")


def test_open_cursor__wraps_and_never_repeats_or_skips(world: World) -> None:
    bench = world.bench(n_tasks=3, lag_bound=None, max_running=100)
    indices = [e.task_index for _ in range(4) for e in bench.open(2)]
    assert indices == [0, 1, 2, 0, 1, 2, 0, 1]
    world.store.release_trainer(bench.run, bench.fence)
    bench.start(owner="second")
    assert [e.task_index for e in bench.open(2)] == [2, 0]


def test_open_seeds__distinct_and_reproducible(world: World) -> None:
    bench = world.bench(n_tasks=2, lag_bound=None, max_running=100)
    episodes = bench.open(8)
    assert len({e.seed for e in episodes}) == 8
    again = world.bench(n_tasks=2, lag_bound=None, max_running=100)
    assert [e.seed for e in again.open(8)] == [e.seed for e in episodes]
    other = world.bench(n_tasks=2, lag_bound=None, max_running=100, seed=8)
    assert not {e.seed for e in other.open(8)} & {e.seed for e in episodes}


def test_open_order__retries_then_missing_seats_then_new(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=3, batch_min=4, batch_max=4)
    (first,) = bench.open(1)
    assert (first.seat, first.attempt) == (0, 1)
    world.store.complete(first, FAILED)
    retry, seat, new, _ = bench.open(4)
    assert (retry.group, retry.seat, retry.attempt) == (first.group, 0, 2)
    assert (seat.group, seat.seat, seat.attempt) == (first.group, 1, 1)
    assert (new.group != first.group, new.seat, new.task_index) == (True, 0, 1)
    assert retry.seed != first.seed


def test_open_group_without_room_for_all_seats__stays_closed(world: World) -> None:
    bench = world.bench(group_size=4, lag_bound=0, batch_min=4, batch_max=4)
    assert len(bench.open(1)) == 1
    # One seat of four is open; the others are served to other calls before any new group.
    others = [*bench.open(1, worker="b"), *bench.open(8, worker="c")]
    assert [e.seat for e in others] == [1, 2, 3]
    assert bench.ask(1).refusal == "no_capacity"


def test_open_unbounded__group_larger_than_what_may_run_opens_seat_by_seat(world: World) -> None:
    bench = world.bench(lag_bound=None, group_size=4, batch_min=4, batch_max=4, max_running=3)
    taken = 0
    for seats in ([0, 1, 2], [3, 0, 1], [2, 3, 0]):
        opened = bench.open(8)
        assert [e.seat for e in opened] == seats
        assert bench.ask(8).refusal == "no_capacity"
        for episode in opened:
            bench.finish(episode)
        taken += len(bench.claim().items)
    assert taken == 2
    bench.check()


def test_open_run_not_running__refused(world: World) -> None:
    bench = world.bench()
    world.store.set_run_status(bench.run, "interrupted")
    assert bench.ask().refusal == "run_not_running"


def test_open_without_tasks__refused(world: World) -> None:
    bench = world.bench(n_tasks=0)
    assert bench.ask().refusal == "no_tasks"
    assert bench.claim().waiting == "nothing"


def test_open_unknown_engine_version__error(world: World) -> None:
    bench = world.bench()
    with pytest.raises(UnknownVersion):
        bench.ask(engine=99)


def test_open_unknown_run__error(world: World) -> None:
    bench = world.bench()
    bench.run = 10**9
    with pytest.raises(UsageError, match="no run"):
        bench.ask()


def test_cancelled_episode__served_again_without_charge(world: World) -> None:
    bench = world.bench(max_attempts=1)
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment())
    assert world.store.complete(episode, CANCELLED) is Place.DROPPED
    for attempt in range(2, 5):
        (again, *_) = bench.open(1)
        assert (again.task_index, again.attempt) == (episode.task_index, attempt)
        world.store.complete(again, CANCELLED)
    bench.check()
