"""``segment_mask``: a trajectory is in range while its newest token is, and the ledger says which tokens were left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from store_bench import Bench, PostgresWorld, World, graded, keys, segment

from agentrl.errors import BadValue, CommitRefused, UsageError
from agentrl.store.contract import ClaimedItem, Masked
from agentrl.types import Opened


def masking(world: World, **spec: Any) -> Bench:
    settings: dict[str, Any] = {"lag_bound": 1, "staleness_mode": "segment_mask", "batch_min": 1, "batch_max": 1}
    return world.bench(**(settings | spec))


def acted(bench: Bench, episode: Opened, *versions: int) -> None:
    """A turn under each version, and the end."""
    for index, version in enumerate(versions):
        bench.store.write_segment(episode, segment(index, version))
    bench.store.complete(episode, graded(len(versions)))


def steps(bench: Bench, n: int) -> None:
    """Steps over other episodes while whatever is open stays open; publishes each time."""
    for _ in range(n):
        (episode,) = bench.open(1)
        bench.finish(episode)
        items = bench.claim().items
        assert [i.trajectories[0].id for i in items] == [episode.trajectory]
        bench.commit(items)
        bench.publish()


def claimed(world: World, bench: Bench) -> Sequence[ClaimedItem]:
    world.advance(bench, 2.0)
    items: Sequence[ClaimedItem] = bench.claim().items
    return items


@pytest.mark.parametrize("mode", ["trajectory", "segment_mask"])
def test_oldest_token_out_of_range__drops_only_where_nothing_is_masked(world: World, mode: str) -> None:
    bench = masking(world, staleness_mode=mode)
    (long,) = bench.open(1)
    bench.store.write_segment(long, segment(0, 0))
    steps(bench, 2)
    bench.store.write_segment(long, segment(1, 2))
    bench.store.complete(long, graded(2))
    items = claimed(world, bench)
    if mode == "trajectory":
        assert items == []
        assert world.drop_reasons(bench) == {"stale": 1}
        return
    (item,) = items
    assert (item.item, item.oldest_update, item.lag) == (long.trajectory, 2, 0)
    bench.check()


def test_lag__is_that_of_the_oldest_token_in_range(world: World) -> None:
    bench = masking(world)
    (long,) = bench.open(1)
    bench.store.write_segment(long, segment(0, 0))
    steps(bench, 1)
    bench.store.write_segment(long, segment(1, 1))
    steps(bench, 1)
    bench.store.write_segment(long, segment(2, 2))
    bench.store.complete(long, graded(3))
    (item,) = claimed(world, bench)
    assert (item.oldest_update, item.lag) == (2, 1)
    bench.commit([item], masked=[Masked(long.trajectory, [0], 3)])
    if isinstance(world, PostgresWorld):
        rows = bench.store.rows(
            "select lag, masked_versions, masked_tokens from agentrl.consumed where run = %s order by step desc limit 1",
            (bench.run,),
        )
        assert rows == [(1, [0], 3)]
        by_step = {r["step"]: r for r in bench.store.query("staleness_by_step", run=bench.spec.name).records()}
        assert [by_step[s]["masked_tokens"] for s in (1, 2, 3)] == [0, 0, 3]


def test_newest_token_out_of_range__is_stale(world: World) -> None:
    bench = masking(world)
    (long,) = bench.open(1)
    acted(bench, long, 0)
    bench.commit(bench.claim().items)
    bench.publish()
    (late,) = bench.open(1)
    bench.store.write_segment(late, segment(0, 0))
    bench.store.write_segment(late, segment(1, 1))
    steps(bench, 2)
    bench.store.complete(late, graded(2))
    assert claimed(world, bench) == []
    assert world.drop_reasons(bench) == {"stale": 1}


def test_masked__must_be_consumed_in_a_run_that_masks(world: World) -> None:
    for mode in ("trajectory", "segment_mask"):
        bench = masking(world, staleness_mode=mode, lag_bound=2, batch_max=2)
        first, second = bench.open(2)
        for episode in (first, second):
            bench.finish(episode)
        one, other = bench.claim(2, 2).items
        left = Masked(one.trajectories[0].id, [0], 3)
        elsewhere = Masked(other.trajectories[0].id, [0], 3)
        released = keys([other])
        with pytest.raises(BadValue, match="masked"):
            bench.commit([one], masked=[left if mode == "trajectory" else elsewhere], released=released)
        assert bench.store.find_run(bench.spec.name).step == 0, "the whole step is undone"
        bench.commit([one], masked=[left] if mode == "segment_mask" else [], released=released)


def test_masking_without_a_bound__is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="contradict"):
        masking(world, lag_bound=None)


def test_masked_group_by_any_member(world: World) -> None:
    """Each member must have a token in range: one that has none has nothing to train, and the group is whole or not at all."""
    bench = masking(world, group_size=2, batch_min=2, batch_max=2)
    first, second = bench.open(2)
    bench.finish(first, version=0)
    for _ in range(2):
        for episode in bench.open(2):
            bench.finish(episode)
        bench.commit(claimed(world, bench))
        bench.publish()
    bench.finish(second, version=2)
    assert claimed(world, bench) == []
    assert world.drop_reasons(bench) == {"stale": 2}
    bench.check()


def test_group_in_range_by_each_member__is_claimed_with_the_lag_of_what_trains(world: World) -> None:
    bench = masking(world, group_size=2, batch_min=2, batch_max=2)
    first, second = bench.open(2)
    for episode in (first, second):
        bench.store.write_segment(episode, segment(0, 0))
    for _ in range(2):
        for episode in bench.open(2):
            bench.finish(episode)
        bench.commit(claimed(world, bench))
        bench.publish()
    bench.store.write_segment(first, segment(1, 1))
    bench.store.write_segment(second, segment(1, 2))
    for episode in (first, second):
        bench.store.complete(episode, graded(2))
    (item,) = claimed(world, bench)
    assert (item.item, item.oldest_update, item.lag) == (first.group, 1, 1)


def test_lag_is_tested_before_the_update__in_both_modes(world: World) -> None:
    bench = masking(world, lag_bound=1, batch_max=2)
    (long,) = bench.open(1)
    acted(bench, long, 0)
    bench.commit(bench.claim().items)
    bench.publish()
    (stale,) = bench.open(1)
    acted(bench, stale, 0, 1)
    held = bench.claim(1, 1, lease_s=100_000.0).items
    steps(bench, 2)
    with pytest.raises(CommitRefused, match="lag"):
        bench.store.renew_leases(bench.run, bench.fence, keys(held), 60.0)


def test_resume__counts_masked_trajectories_on_the_new_branch(world: World) -> None:
    bench = masking(world, lag_bound=1)
    steps(bench, 1)
    checkpoint = bench.checkpoint()
    (long,) = bench.open(1)
    bench.store.write_segment(long, segment(0, 0))
    steps(bench, 1)
    acted_on = bench.version
    bench.store.write_segment(long, segment(1, acted_on))
    bench.store.complete(long, graded(2))
    world.take_over(bench, checkpoint)
    items = {i.item: i for i in bench.claim(1, 4).items}
    assert len(items) == 2, "the abandoned step's and the long one"
    assert (items[long.trajectory].oldest_update, items[long.trajectory].lag) == (0, 1)
    bench.check()
