"""Trainer starts: fences, branches, and lag along the parent chain."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from store_bench import PostgresWorld, World, keys, segment

from agentrl.errors import Fenced, UsageError
from agentrl.types import Place


def test_first_start__no_version_yet(world: World) -> None:
    bench = world.bench(started=False)
    started = bench.start()
    assert (started.branch, started.step, started.updates, started.version) == (1, 0, 0, None)


def test_start_while_another_is_alive__fenced(world: World) -> None:
    bench = world.bench(started=False)
    bench.start(owner="a", lease_s=60)
    with pytest.raises(Fenced, match="holds run"):
        world.store.start_trainer(bench.run, owner="b", lease_s=60, checkpoint=None)
    world.advance(bench, 30)
    world.store.renew_trainer(bench.run, bench.fence, 60)
    world.advance(bench, 40)
    with pytest.raises(Fenced):
        world.store.start_trainer(bench.run, owner="b", lease_s=60, checkpoint=None)
    world.advance(bench, 30)
    second = world.store.start_trainer(bench.run, owner="b", lease_s=60, checkpoint=None)
    assert second.fence > bench.fence
    with pytest.raises(Fenced):
        world.store.renew_trainer(bench.run, bench.fence, 60)


def test_start_by_the_same_process__takes_over_its_own_lease(world: World) -> None:
    bench = world.bench()
    first = bench.fence
    assert bench.start(owner="trainer").fence > first


def test_release__next_start_at_once(world: World) -> None:
    bench = world.bench()
    world.store.release_trainer(bench.run, bench.fence)
    world.store.release_trainer(bench.run, bench.fence)
    assert bench.start(owner="second").branch == 2


def test_resume_at_a_checkpoint__later_steps_abandoned_and_items_back(world: World) -> None:
    bench = world.bench(lag_bound=2, n_tasks=50)
    bench.train(2)
    checkpoint = bench.checkpoint()
    at_checkpoint = bench.version
    bench.train(2)
    bench.checkpoint()
    assert bench.place(Place.CONSUMED) == 8
    world.store.release_trainer(bench.run, bench.fence)
    started = bench.start(checkpoint, owner="second")
    assert (started.step, started.updates, started.branch) == (2, 2, 2)
    assert started.version is not None
    assert (started.version.parent, started.version.updates, started.version.status) == (at_checkpoint, 2, "published")
    parent = world.store.version(bench.run, at_checkpoint)
    assert (started.version.uri, started.version.checksum) == (parent.uri, parent.checksum), "weights, which engines can load"
    assert world.store.newest_version(bench.run) == started.version
    assert [c.id for c in world.store.checkpoints(bench.run)] == [checkpoint]
    assert bench.place(Place.CONSUMED) == 4
    assert (world.store.find_run(bench.spec.name).step, world.store.find_run(bench.spec.name).updates) == (2, 2)
    bench.check()


def test_resume__items_in_range_are_trained_again_once(world: World) -> None:
    bench = world.bench(lag_bound=0, n_tasks=50)
    bench.train(1)
    checkpoint = bench.checkpoint()
    for episode in bench.open():
        bench.finish(episode)
    claim = bench.claim()
    bench.commit(claim.items)
    world.store.release_trainer(bench.run, bench.fence)
    started = bench.start(checkpoint, owner="second")
    assert started.returned == 2
    again = bench.claim()
    assert {i.item for i in again.items} == {i.item for i in claim.items}
    assert bench.commit(again.items).step == 2
    assert bench.place(Place.CONSUMED) == 4
    bench.check()


def test_resume_from_the_root__when_no_checkpoint_exists(world: World) -> None:
    bench = world.bench(lag_bound=1)
    bench.train(2)
    world.store.release_trainer(bench.run, bench.fence)
    started = bench.start(None, owner="second")
    assert started.version is not None
    assert (started.step, started.updates, started.version.parent, started.version.uri[:2]) == (0, 0, 0, "w0")
    bench.train(1)
    bench.check()


def test_resume__a_critic_only_step_is_kept(world: World) -> None:
    bench = world.bench(lag_bound=0)
    for _ in range(2):
        for episode in bench.open():
            bench.finish(episode)
        bench.commit(bench.claim().items, policy=False)
    checkpoint = bench.checkpoint()
    world.store.release_trainer(bench.run, bench.fence)
    started = bench.start(checkpoint, owner="second")
    assert (started.step, started.updates) == (2, 0)
    assert bench.place(Place.CONSUMED) == 4


def test_lag_of_an_abandoned_branch__both_arms_count(world: World) -> None:
    """A token of a dead branch is old by the updates on both sides of the last common ancestor."""
    bench = world.bench(lag_bound=3, batch_min=1, batch_max=1, n_tasks=50)
    bench.train(1)
    checkpoint = bench.checkpoint()
    bench.train(2)
    # A token of version updates 3, two updates after the checkpoint at 1.
    episode = bench.open(1)[0]
    world.store.write_segment(episode, segment(version=bench.version))
    world.store.release_trainer(bench.run, bench.fence)
    bench.start(checkpoint, owner="second")
    dead = max(v for v in range(bench.version))
    assert bench.finish(episode, version=dead) is Place.READY
    lags = {i.trajectories[0].id: i.lag for i in bench.claim(1, 64).items}
    assert lags[episode.trajectory] == 2, "head 1 + token 3 - 2 * common 1"


def test_lag_out_of_range_on_the_new_branch__abandoned_branch(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=1, batch_max=1, n_tasks=50)
    bench.train(3)
    far = bench.open(1)[0]
    bench.finish(far)
    world.store.release_trainer(bench.run, bench.fence)
    started = bench.start(None, owner="second")
    assert started.dropped >= 1
    assert world.drop_reasons(bench)["abandoned_branch"] >= 1
    bench.check()


def test_dead_branch_token_after_resume__stays_valid_to_write(world: World) -> None:
    """Names, not updates, tell a token from the future."""
    bench = world.bench(lag_bound=4, batch_min=1, batch_max=2, n_tasks=50)
    for _ in range(2):
        bench.finish(bench.open(1)[0])
        bench.commit(bench.claim().items)
        bench.publish()
    dead = bench.version
    world.store.release_trainer(bench.run, bench.fence)
    bench.start(None, owner="second")
    (episode,) = bench.open(1)
    assert bench.finish(episode, version=dead) is Place.READY


def test_resume_after_resume__versions_are_never_reused(world: World) -> None:
    bench = world.bench(lag_bound=1)
    names = [bench.version]
    for owner in ("b", "c", "d"):
        bench.train(1)
        names.append(bench.version)
        world.store.release_trainer(bench.run, bench.fence)
        bench.start(None, owner=owner)
        names.append(bench.version)
    assert names == sorted(set(names))


def test_leases_of_a_replaced_trainer__charged_only_when_it_died_in_its_update(world: World) -> None:
    bench = world.bench(lag_bound=0, max_lease_attempts=1)
    for episode in bench.open():
        bench.finish(episode)
    bench.claim(lease_s=10_000)
    world.advance(bench, 2000)
    started = bench.start(None, owner="second")
    assert started.returned == 2, "claimed, but never in an update: not charged"
    claim = bench.claim(lease_s=10_000)
    world.store.renew_leases(bench.run, bench.fence, keys(claim.items), 10_000)
    world.store.release_trainer(bench.run, bench.fence)
    assert bench.place(Place.READY) == 2, "a clean release is not charged"
    bench.start(None, owner="third")
    claim = bench.claim(lease_s=10_000)
    world.store.renew_leases(bench.run, bench.fence, keys(claim.items), 10_000)
    world.advance(bench, 2000)
    bench.start(None, owner="fourth")
    assert world.drop_reasons(bench) == {"max_attempts": 2}
    bench.check()


def test_resume_of_groups__whole_groups_return(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=1)
    for episode in bench.open(2):
        bench.finish(episode)
    claim = bench.claim()
    bench.commit(claim.items)
    world.store.release_trainer(bench.run, bench.fence)
    started = bench.start(None, owner="second")
    assert started.returned == 1
    (item,) = bench.claim().items
    assert [t.id for t in item.trajectories] == [t.id for t in claim.items[0].trajectories]
    bench.check()


def test_checkpoint_of_a_dead_branch__refused(world: World) -> None:
    bench = world.bench(lag_bound=1)
    bench.train(1)
    checkpoint = bench.checkpoint()
    world.store.release_trainer(bench.run, bench.fence)
    bench.start(None, owner="second")
    world.store.release_trainer(bench.run, bench.fence)
    with pytest.raises(UsageError, match="live history"):
        bench.start(checkpoint, owner="third")


def test_steps_over_resumes__unique_and_gap_free(world: World) -> None:
    bench = world.bench(lag_bound=0, n_tasks=50)
    trained: dict[int, set[object]] = {}
    checkpoint = None
    for owner in ("a", "b", "c"):
        for _ in range(2):
            for episode in bench.open():
                bench.finish(episode)
            claim = bench.claim()
            step = bench.commit(claim.items).step
            trained[step] = {i.item for i in claim.items}
            bench.publish()
            checkpoint = bench.checkpoint()
        world.store.release_trainer(bench.run, bench.fence)
        bench.start(checkpoint, owner=f"after {owner}")
    assert sorted(trained) == [1, 2, 3, 4, 5, 6]
    assert len(set().union(*trained.values())) == 12


def test_removed_checkpoints__are_no_start_and_keep_no_weights(world: World) -> None:
    bench = world.bench(lag_bound=9, n_tasks=50)
    bench.train(1)
    first, weights = bench.checkpoint(), world.store.version(bench.run, bench.version).uri
    for _ in range(2):
        bench.train(1)
        bench.checkpoint()
    live = world.store.checkpoints(bench.run)
    assert weights in world.store.needed_weights(bench.run, 1)
    for _ in range(2):  # a lost reply
        stay = world.store.retire_checkpoints(bench.run, bench.fence, keep=2)
        assert stay == {c.uri for c in live[:2]}
    assert world.store.checkpoints(bench.run) == live[:2]
    assert weights not in world.store.needed_weights(bench.run, 1)
    with pytest.raises(Fenced):
        world.store.retire_checkpoints(bench.run, bench.fence - 1, keep=2)
    world.store.release_trainer(bench.run, bench.fence)
    with pytest.raises(UsageError, match="or was removed"):
        bench.start(first, owner="second")
    bench.start(live[1].id, owner="second")
    assert world.store.retire_checkpoints(bench.run, bench.fence, keep=2) == {live[1].uri}, "left behind"


def test_renewal__waits_for_no_move_and_a_start_for_all(postgres: PostgresWorld) -> None:
    """An import may take minutes, and the moves of a busy run overlap without a gap: no lease may be lost to them."""
    bench = postgres.bench()
    move = "select agentrl.hold_run_v1(%s::bigint)"
    with ThreadPoolExecutor(1) as pool, postgres.store.transaction() as connection:
        connection.execute(move, (bench.run,))
        pool.submit(bench.store.renew_trainer, bench.run, bench.fence, 1000.0).result(timeout=60)
    started = postgres.overlap(move, (bench.run,), lambda: bench.start(owner="trainer"))
    assert started.branch == 2
    with pytest.raises(Fenced):
        bench.store.renew_trainer(bench.run, started.fence - 1, 1000.0)
