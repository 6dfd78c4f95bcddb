"""Several runs over the same rows: each by an explicit import, with a ledger of its own."""

from __future__ import annotations

import pytest
from store_bench import Bench, World

from agentrl.errors import UsageError
from agentrl.store.contract import ImportFilter
from agentrl.types import Place

EVERYTHING = ImportFilter()


def offline(world: World, **spec: object) -> Bench:
    return world.bench(n_tasks=0, lag_bound=None, **spec)


def test_import__gives_the_same_rows_to_both_runs(world: World) -> None:
    source = world.bench(lag_bound=0)
    source.train(2)
    other = offline(world)
    taken = world.store.import_trajectories(other.run, source.run, EVERYTHING)
    assert (taken.items, taken.trajectories) == (4, 4)
    before = world.store.conservation(source.run)
    claim = other.claim(n_min=4, n_max=4)
    assert sorted(t.task_id for i in claim.items for t in i.trajectories) == ["t0", "t1", "t2", "t3"]
    assert all(t.segments[0].n_act == 3 for i in claim.items for t in i.trajectories)
    assert other.commit(claim.items).step == 1
    assert (other.place(Place.CONSUMED), source.place(Place.CONSUMED)) == (4, 4)
    assert world.store.conservation(source.run) == before
    other.check()


def test_import_again__takes_nothing_twice(world: World) -> None:
    source = world.bench(lag_bound=0)
    source.train(1)
    other = offline(world)
    assert world.store.import_trajectories(other.run, source.run, EVERYTHING).items == 2
    other.commit(other.claim().items)
    assert world.store.import_trajectories(other.run, source.run, EVERYTHING).items == 0
    source.train(1)
    assert world.store.import_trajectories(other.run, source.run, EVERYTHING).items == 2
    other.check()


def test_import__by_reward_step_and_limit(world: World) -> None:
    source = world.bench(lag_bound=0)
    source.train(2)
    a, b = source.open(2)
    source.finish(a, value=0.0)
    source.finish(b, value=0.5)
    for which, n in (
        (ImportFilter(max_reward=0.4), 1),
        (ImportFilter(min_reward=0.4, max_reward=0.6), 1),
        (ImportFilter(success=True), 5),
        (ImportFilter(first_step=2, last_step=2), 2),
        (ImportFilter(limit=3), 3),
    ):
        assert world.store.import_trajectories(offline(world).run, source.run, which).items == n, which


def test_import__leaves_out_what_is_running_or_failed(world: World) -> None:
    source = world.bench(lag_bound=0)
    _, b = source.open(2)
    source.finish(b)
    assert world.store.import_trajectories(offline(world).run, source.run, EVERYTHING).trajectories == 1


def test_import_of_groups__whole_ones_of_this_size(world: World) -> None:
    source = world.bench(lag_bound=0, group_size=2)
    source.train(1)
    grouped = offline(world, group_size=2)
    assert world.store.import_trajectories(grouped.run, source.run, EVERYTHING).items == 1
    assert [len(i.trajectories) for i in grouped.claim().items] == [2]
    other_size = offline(world, group_size=3, batch_min=3, batch_max=3)
    assert world.store.import_trajectories(other_size.run, source.run, EVERYTHING).items == 0


def test_import__survives_a_resume_and_keeps_no_lag(world: World) -> None:
    source = world.bench(lag_bound=0)
    source.train(2)
    other = offline(world)
    world.store.import_trajectories(other.run, source.run, EVERYTHING)
    other.commit(other.claim().items)
    other.publish()
    world.store.release_trainer(other.run, other.fence)
    assert other.start(None, owner="second").returned == 2
    claim = other.claim(n_min=4, n_max=4)
    assert [i.lag for i in claim.items] == [0, 0, 0, 0]
    other.check()


def test_import__refused_for_runs_with_a_lag_bound_and_for_oneself(world: World) -> None:
    source = world.bench(lag_bound=0)
    source.train(1)
    with pytest.raises(UsageError, match="lag bound"):
        world.store.import_trajectories(world.bench(lag_bound=1).run, source.run, EVERYTHING)
    with pytest.raises(UsageError, match="itself"):
        world.store.import_trajectories(source.run, source.run, EVERYTHING)


def test_claim_by_environment__takes_only_those(world: World) -> None:
    source = world.bench(lag_bound=0)
    source.train(1)
    other = world.bench(lag_bound=None, environment="another")
    for episode in other.open(2):
        other.finish(episode)
    world.store.import_trajectories(other.run, source.run, EVERYTHING)

    def claim(*environments: str) -> list[str]:
        found = world.store.claim(other.run, other.fence, n_min=1, n_max=8, lease_s=60, environments=environments)
        return sorted(t.environment for i in found.items for t in i.trajectories)

    assert claim("nowhere") == []
    assert len(claim("toy")) == 2
    assert len(claim("another")) == 2
    other.check()
