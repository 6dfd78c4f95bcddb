"""More episodes than a batch or a group needs: the first that finish are taken, and nothing that finished is thrown away."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from store_bench import FAILED, Bench, World, graded, segment

from agentrl.errors import Fenced, UsageError
from agentrl.store.contract import ImportFilter
from agentrl.types import EpisodeEnd, Opened, Outcome, Place, Reward, Termination


def redundant(world: World, **spec: Any) -> Bench:
    """Groups of two with a third seat, one group a step, strictly synchronous."""
    settings: dict[str, Any] = {"lag_bound": 0, "group_size": 2, "group_extra": 1, "batch_min": 2, "batch_max": 2}
    return world.bench(**(settings | spec))


def trained(bench: Bench) -> set[uuid.UUID]:
    items = bench.claim().items
    bench.commit(items)
    bench.publish()
    return {t.id for i in items for t in i.trajectories}


def ids(episodes: Sequence[Opened]) -> set[uuid.UUID]:
    return {e.trajectory for e in episodes}


def test_redundant_seats_counted(world: World) -> None:
    """The redundant seat needs no room: the batch is the group, and it opens whole at once or seat by seat."""
    bench = redundant(world)
    assert sorted(e.seat for e in bench.open(8)) == [0, 1, 2]
    assert bench.ask(8).refusal == "no_capacity"
    other = redundant(world)
    assert [other.open(1)[0].seat for _ in range(3)] == [0, 1, 2]
    assert other.ask(1).refusal == "no_capacity"


def test_first_graded_members__close_the_group_and_the_straggler_is_superseded(world: World) -> None:
    bench = redundant(world)
    first, second, third = bench.open(3)
    bench.finish(third)
    assert bench.place(Place.READY) == 0
    bench.store.write_segment(second, segment(0, 0))
    bench.finish(first)
    assert bench.place(Place.READY) == 2
    assert world.drop_reasons(bench) == {"superseded": 1}
    assert bench.store.renew_episodes("w", {second.trajectory: second.fence}) == {second.trajectory}
    with pytest.raises(Fenced):
        bench.store.complete(second, graded(1))
    bench.check()
    assert trained(bench) == ids([first, third])
    assert len(bench.open(8)) == 3, "a superseded seat is not served again"


def test_member_that_waits_for_its_verdict__is_superseded_too(world: World) -> None:
    bench = redundant(world)
    first, second, third = bench.open(3)
    bench.store.write_segment(first, segment(0, 0))
    bench.store.complete(first, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    (job,) = bench.store.claim_grades(bench.run, worker="judge", n=1, lease_s=60.0)
    for episode in (second, third):
        bench.finish(episode)
    assert world.drop_reasons(bench) == {"superseded": 1}
    assert bench.store.renew_grades({first.trajectory: job.fence}) == {first.trajectory}
    bench.check()


def test_as_many_seats_may_be_lost__as_are_redundant(world: World) -> None:
    bench = redundant(world, max_attempts=1)
    first, second, third = bench.open(3)
    bench.store.complete(first, FAILED)
    assert bench.ask(8).refusal == "no_capacity"
    for episode in (second, third):
        bench.finish(episode)
    assert trained(bench) == ids([second, third])
    one, two, three = bench.open(3)
    bench.store.complete(one, FAILED)
    bench.store.complete(two, FAILED)
    assert world.drop_reasons(bench) == {"infrastructure": 3, "group_incomplete": 1}
    assert bench.store.renew_episodes("w", {three.trajectory: three.fence}) == {three.trajectory}
    bench.check()


def test_retry_in_a_group_that_has_enough_members__uses_no_capacity(world: World) -> None:
    bench = redundant(world, lag_bound=1)
    first, *_ = bench.open(3)
    bench.store.complete(first, FAILED)
    again, *others = bench.open(9)
    assert (again.group, again.seat, again.attempt) == (first.group, 0, 2)
    assert [e.seat for e in others] == [0, 1, 2], "the other group did not wait for the next call"
    assert bench.ask(9).refusal == "no_capacity"
    bench.check()


def test_pending_retry_of_a_closed_group__is_not_served(world: World) -> None:
    bench = redundant(world)
    first, second, third = bench.open(3)
    bench.store.complete(first, FAILED)
    for episode in (second, third):
        bench.finish(episode)
    assert trained(bench) == ids([second, third])
    assert all(e.attempt == 1 and e.group != first.group for e in bench.open(8))


def test_room_counts_what_will_be_trained__with_several_groups(world: World) -> None:
    bench = redundant(world, lag_bound=1)
    opened = bench.open(4)
    assert [e.seat for e in opened] == [0, 1, 2, 0]
    assert [e.seat for e in bench.open(8)] == [1, 2]
    assert bench.ask(1).refusal == "no_capacity", "two groups of two trained members fill two batches"
    for episode in opened[:2]:
        bench.finish(episode)
    assert bench.ask(8).refusal == "no_capacity", "the first group is ready: the same two members"
    trained(bench)
    assert [e.seat for e in bench.open(8)] == [0, 1, 2]
    bench.check()


def test_superseded_members__are_in_no_import_of_the_group(world: World) -> None:
    bench = redundant(world)
    first, second, third = bench.open(3)
    bench.store.write_segment(first, segment(0, 0))
    bench.store.complete(first, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    for episode in (second, third):
        bench.finish(episode)
    bench.store.regrade(first.trajectory, Reward(1.0))
    taking = world.bench(n_tasks=0, lag_bound=None, group_size=2, batch_min=2, batch_max=2)
    assert world.store.import_trajectories(taking.run, bench.run, ImportFilter()).items == 1
    assert {t.id for i in taking.claim().items for t in i.trajectories} == ids([second, third])


def test_oversampling__first_that_finish_make_the_batch_and_the_rest_goes_on(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=4, batch_max=4, oversample=2)
    opened = bench.open(16)
    assert len(opened) == 6, "a batch and two more, where the bound would admit eight"
    quick, slow = opened[2:], opened[:2]
    for episode in slow:
        bench.store.write_segment(episode, segment(0, bench.version))
    for episode in quick:
        bench.finish(episode)
    assert bench.ask(16).refusal == "no_capacity", "the batch in hand still counts"
    assert trained(bench) == ids(quick)
    again = bench.open(16)
    assert len(again) == 4
    for episode in slow:
        bench.store.write_segment(episode, segment(1, bench.version))
        bench.store.complete(episode, graded(2))
    for episode in again[:2]:
        bench.finish(episode)
    assert trained(bench) == ids([*slow, *again[:2]]), "what was begun before is in the next batch, under both versions"
    assert world.drop_reasons(bench) == {}
    bench.check()


def test_oversampling__waits_for_weights_like_the_bound_does(world: World) -> None:
    bench = world.bench(lag_bound=2, batch_min=2, batch_max=2, oversample=1)
    for episode in bench.open(2):
        bench.finish(episode)
    bench.commit(bench.claim().items)
    assert len(bench.open(8)) == 1, "the engine has not loaded the step that freed the others' places"
    bench.publish()
    assert len(bench.open(8)) == 2


@pytest.mark.parametrize(
    "spec",
    [
        {"group_extra": 1},
        {"group_extra": -1, "group_size": 2},
        {"lag_bound": 0, "oversample": 1},
        {"lag_bound": 1, "oversample": 3},
        {"oversample": -1},
    ],
)
def test_surplus_that_can_t_be_used__is_refused(world: World, spec: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="contradict"):
        world.bench(**spec)
