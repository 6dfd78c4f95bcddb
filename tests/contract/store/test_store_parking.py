"""Episodes that lost their worker are continued from their last stored turn, where the run wants that."""

from __future__ import annotations

import dataclasses
import uuid

import pytest
from store_bench import LINEAGE, Bench, World, graded, segment

from agentrl.errors import Fenced, UsageError
from agentrl.store.contract import ImportFilter
from agentrl.types import OUTSIDE, Opened, Origin, Place

OUTSIDER = dataclasses.replace(LINEAGE, sandbox=OUTSIDE, origin=Origin.RECORDED)


def begun(bench: Bench, turns: int = 1) -> Opened:
    (episode,) = bench.open(1)
    for index in range(turns):
        bench.store.write_segment(episode, segment(index, bench.version))
    return episode


def test_parked__is_served_first_with_its_turns_and_a_new_fence(world: World) -> None:
    bench = world.bench(resume_partial=True)
    episode = begun(bench, turns=2)
    assert bench.store.park(episode) is True
    assert bench.place(Place.LIVE) == 1
    (again,) = bench.open(5, worker="other")
    assert dataclasses.replace(again, fence=episode.fence, n_segments=0) == episode
    assert again.n_segments == 2
    assert bench.store.write_segment(again, segment(2, bench.version)) is True
    assert bench.store.complete(again, graded(3)) is Place.READY
    assert [s.index for s in bench.store.trajectory(episode.trajectory).segments] == [0, 1, 2]
    bench.check()


def test_parked__fences_out_whoever_left_it(world: World) -> None:
    bench = world.bench(resume_partial=True)
    episode = begun(bench)
    bench.store.park(episode)
    assert bench.store.park(episode) is False
    assert bench.store.renew_episodes("w", {episode.trajectory: episode.fence}) == {episode.trajectory}
    for _ in range(2):
        with pytest.raises(Fenced):
            bench.store.write_segment(episode, segment(1))
        with pytest.raises(Fenced):
            bench.store.complete(episode, graded(1))
        bench.open(1, worker="other")


def test_parked__holds_its_place_and_needs_no_capacity(world: World) -> None:
    bench = world.bench(resume_partial=True, lag_bound=0, n_tasks=2)
    episodes = list(bench.open())
    assert len(episodes) == 2
    for episode in episodes:
        bench.store.write_segment(episode, segment())
        bench.store.park(episode)
    assert bench.ask(1, engine=0).refusal is None
    assert len(bench.open()) == 1
    assert bench.ask().refusal == "no_capacity"


@pytest.mark.parametrize("partial", [True, False])
def test_lapsed__is_continued_where_the_run_says_so(partial: bool, world: World) -> None:
    bench = world.bench(resume_partial=partial, lease_s=60, max_attempts=2)
    episode = begun(bench)
    world.advance(bench, 61)
    (again, *_) = bench.open(1, worker="other")
    assert (again.trajectory == episode.trajectory, again.attempt) == (partial, 1 if partial else 2)
    assert world.drop_reasons(bench) == ({} if partial else {"infrastructure": 1})
    world.advance(bench, 61)
    bench.open(1, worker="third")  # the last attempt is used up: now it is dropped, and nothing of it is served again
    assert world.drop_reasons(bench)["infrastructure"] == (1 if partial else 2)
    bench.check()


def test_lapsed_before_its_first_turn__starts_again(world: World) -> None:
    bench = world.bench(resume_partial=True, lease_s=60)
    (episode,) = bench.open(1)
    assert bench.store.park(episode) is False
    world.advance(bench, 61)
    (again,) = bench.open(1)
    assert again.trajectory != episode.trajectory
    assert again.attempt == 2


def test_parked__is_not_given_to_an_agent_outside(world: World) -> None:
    bench = world.bench(resume_partial=True)
    episode = begun(bench)
    bench.store.park(episode)
    (fresh,) = bench.open(1, worker="gateway", lineage=OUTSIDER)
    assert (fresh.trajectory != episode.trajectory, fresh.n_segments) == (True, 0)
    assert [e.trajectory for e in bench.open(5)] == [episode.trajectory]
    bench.check()


def test_episode_of_an_agent_outside__is_left_to_nobody_and_starts_again(world: World) -> None:
    bench = world.bench(resume_partial=True, lease_s=60)
    (episode,) = bench.open(1, worker="gateway", lineage=OUTSIDER)
    bench.store.write_segment(episode, segment(0, bench.version))
    assert bench.store.park(episode) is False
    world.advance(bench, 61)
    (again,) = bench.open(1)
    assert (again.seat, again.attempt, again.n_segments) == (episode.seat, 2, 0)
    assert world.drop_reasons(bench) == {"infrastructure": 1}
    bench.check()


def test_parked_for_too_long__is_too_old(world: World) -> None:
    bench = world.bench(resume_partial=True, max_age_s=100)
    bench.store.park(begun(bench))
    world.advance(bench, 101)
    bench.open(1)
    assert world.drop_reasons(bench) == {"too_old": 1}
    bench.check()


def test_parked_member__keeps_its_group_open(world: World) -> None:
    bench = world.bench(resume_partial=True, group_size=2, lag_bound=0)
    first, second = bench.open()
    bench.store.write_segment(first, segment())
    bench.store.park(first)
    assert bench.finish(second) is Place.GRADED
    (again,) = bench.open()
    bench.store.complete(again, graded(1))
    assert bench.place(Place.READY) == 2
    bench.check()


def test_repeated_request__gives_the_parked_one_again(world: World) -> None:
    bench = world.bench(resume_partial=True)
    bench.store.park(begun(bench))
    request = uuid.uuid4()
    (first,) = bench.ask(3, request=request).episodes
    (second,) = bench.ask(3, request=request).episodes
    assert (first.trajectory, first.fence) == (second.trajectory, second.fence)


def test_repeated_request__gives_nothing_that_went_to_another_worker_since(world: World) -> None:
    """Its reply was lost, and its worker was cut off for longer than a lease: it must not get the other worker's fence."""
    bench = world.bench(resume_partial=True)
    bench.store.park(begun(bench))
    request = uuid.uuid4()
    (lost,) = bench.ask(3, worker="cut off", request=request).episodes
    world.advance(bench, 100)
    (continued,) = bench.open(3, worker="other")
    assert continued.trajectory == lost.trajectory
    late = bench.ask(3, worker="cut off", request=request)
    assert (late.episodes, late.refusal) == ([], "taken_over")
    assert bench.store.write_segment(continued, segment(1, bench.version)) is True
    with pytest.raises(Fenced):
        bench.store.write_segment(lost, segment(1, bench.version))


def test_live_traffic__is_only_taken_where_it_is_named(world: World) -> None:
    live = dataclasses.replace(LINEAGE, origin=Origin.LIVE)
    named, plain = world.bench(origins=(Origin.LIVE,)), world.bench(lag_bound=None)

    def ask(bench: Bench) -> Opened:
        (episode,) = bench.store.open_episodes(
            bench.run, worker="w", request=uuid.uuid4(), n=1, engine_version=0, lineage=live
        ).episodes
        return episode

    with pytest.raises(UsageError, match="origins"):
        ask(plain)
    named.finish(ask(named))
    assert plain.store.import_trajectories(plain.run, named.run, ImportFilter()).items == 0
    willing = world.bench(lag_bound=None, origins=(Origin.LIVE, Origin.SIMULATED))
    assert willing.store.import_trajectories(willing.run, named.run, ImportFilter()).items == 1
