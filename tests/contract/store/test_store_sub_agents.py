"""Sub-agents: stored with the turn that started them, part of their episode wherever it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from store_bench import FAILED, LINEAGE, Bench, PostgresWorld, World, graded, keys, segment
from test_store_writing import equal

from agentrl.errors import BadValue, Fenced, IllegalMove, SegmentConflict, UnknownVersion
from agentrl.store.contract import ImportFilter, Trained
from agentrl.types import Opened, Outcome, Place, Reward, SubAgent, Task, Termination


def child(episode: Opened, seat: int = 0, **changes: Any) -> SubAgent:
    made = SubAgent(
        trajectory=uuid4(),
        parent=episode.trajectory,
        parent_segment=0,
        seat=seat,
        task=Task(f"t/helper/{seat}", {"question": f"q{seat}"}),
        seed=17 + seat,
        environment="helper",
        environment_version="2",
        termination=Termination.TERMINATED,
        segments=(segment(0), segment(1, n=2)),
        duration_s=1.5,
    )
    return replace(made, **changes)


def test_sub_agents__are_given_back_with_their_episode(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    first = child(episode)
    nested = child(episode, 1, parent=first.trajectory, parent_segment=1)
    own = child(episode, 2, graded=True, reward=Reward(0.25, False, "helper"), termination=Termination.TRUNCATED_TURNS)
    assert world.store.write_segment(episode, segment(0), [first, nested, own])
    running = world.store.trajectory(episode.trajectory)
    assert (running.ended, [s.ended for s in running.sub_agents]) == (False, [True] * 3)
    world.store.complete(episode, graded(1, value=1.0))
    read = world.store.trajectory(episode.trajectory)
    assert [s.id for s in read.sub_agents] == [first.trajectory, nested.trajectory, own.trajectory]
    assert [(s.parent, s.parent_segment, s.seat) for s in read.sub_agents] == [
        (episode.trajectory, 0, 0), (first.trajectory, 1, 1), (episode.trajectory, 0, 2),
    ]  # fmt: skip
    assert [s.reward.value for s in read.sub_agents] == [1.0, 1.0, 0.25]
    assert [s.inherits for s in read.sub_agents] == [True, True, False]
    assert [s.outcome for s in read.sub_agents] == [Outcome.GRADED] * 3
    assert [s.termination for s in read.sub_agents] == [s.termination for s in (first, nested, own)]
    got = read.sub_agents[0]
    assert (got.task_id, got.seed, got.environment, got.lineage.environment_version) == ("t/helper/0", 17, "helper", "2")
    assert (got.lineage.model, got.start_version) == (read.lineage.model, episode.start_version)
    assert all(equal(a, b) for a, b in zip(got.segments, first.segments, strict=True))
    alone = world.store.trajectory(nested.trajectory)
    assert (alone.id, alone.parent, alone.reward.value) == (nested.trajectory, first.trajectory, 1.0)


def test_verdicts__of_the_episodes_reward_code_count_for_sub_agents_that_have_none(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    first, other = child(episode), child(episode, 1)
    nested = child(episode, 2, parent=first.trajectory, parent_segment=1)
    own = child(episode, 3, graded=True, reward=Reward(0.25, False, "helper"))
    world.store.write_segment(episode, segment(0), [first, other, nested, own])
    judged = replace(graded(1, value=1.0), verdicts={first.trajectory: Reward(0.5, True, "team", "3")})
    for wrong in (own.trajectory, uuid4()):
        with pytest.raises(IllegalMove, match=f"{wrong} is no sub-agent without a verdict"):
            world.store.complete(episode, replace(judged, verdicts={wrong: Reward(0.5)}))
    with pytest.raises(BadValue, match="verdicts"):
        world.store.complete(episode, replace(judged, reward=None))
    with pytest.raises(Fenced):
        world.store.complete(replace(episode, fence=episode.fence + 99), judged)
    assert [world.store.complete(episode, judged) for _ in range(2)] == [Place.READY] * 2
    read = world.store.trajectory(episode.trajectory)
    assert [s.reward.value for s in read.sub_agents] == [0.5, 1.0, 0.5, 0.25], "one that has none has its parent's"
    assert [s.inherits for s in read.sub_agents] == [False, True, True, False]
    assert (read.sub_agents[0].reward.grader, read.sub_agents[0].reward.grader_version) == ("team", "3")
    assert (read.sub_agents[0].group, read.sub_agents[1].group) == (read.sub_agents[3].group, None)
    assert [s.outcome for s in read.sub_agents] == [Outcome.GRADED] * 4
    bench.check()


def test_exactly_once_effect__the_same_turn_again_and_another_one(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    one = child(episode)
    assert world.store.write_segment(episode, segment(0), [one])
    assert not world.store.write_segment(episode, segment(0), [one])
    for other in (replace(one, trajectory=uuid4()), replace(one, segments=one.segments[:1]), replace(one, seat=3)):
        with pytest.raises(SegmentConflict):
            world.store.write_segment(episode, segment(0), [other])
    with pytest.raises(SegmentConflict):
        world.store.write_segment(episode, segment(0, n=5), [one])
    assert len(world.store.trajectory(episode.trajectory).sub_agents) == 1


def test_turn_and_sub_agents__are_stored_both_or_neither(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    with pytest.raises(Fenced):
        world.store.write_segment(replace(episode, fence=episode.fence + 99), segment(0), [child(episode)])
    with pytest.raises(UnknownVersion):
        world.store.write_segment(episode, segment(0), [child(episode, segments=(segment(0, version=9),))])
    with pytest.raises(BadValue):
        world.store.write_segment(episode, segment(0), [child(episode, task=Task("t", {"q": "\0"}))])
    read = world.store.trajectory(episode.trajectory)
    assert (len(read.segments), len(read.sub_agents)) == (0, 0)


def test_conservation__only_episodes_are_admitted_claimed_and_counted(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=2, batch_max=2)
    opened = bench.open()
    assert len(opened) == 4
    for episode in opened:
        world.store.write_segment(episode, segment(0), [child(episode), child(episode, 1)])
        bench.check()
        world.store.complete(episode, graded(1))
    assert bench.ask().refusal == "no_capacity"
    assert bench.place(Place.READY) == 4
    bench.check()
    claim = bench.claim()
    assert [len(item.trajectories) for item in claim.items] == [1, 1]
    bench.commit(claim.items)
    assert (bench.place(Place.CONSUMED), bench.place(Place.READY)) == (2, 2)
    bench.check()
    bench.publish()
    assert len(bench.open()) == 2


def test_version_truth__the_oldest_token_may_be_a_sub_agents(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=1, batch_max=1)
    old, young = bench.open(2)
    bench.finish(young)
    bench.commit(bench.claim().items)
    bench.publish()
    world.store.write_segment(old, segment(0, version=1), [child(old)])
    world.store.complete(old, graded(1))
    (item,) = bench.claim().items
    assert (item.lag, item.oldest_update) == (1, 0)
    world.take_over(bench)
    (again,) = bench.claim().items
    assert again.trajectories[0].sub_agents[0].n_turns == 2


def test_trained_arrays__are_kept_for_each_member_of_a_consumed_episode(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=1, batch_max=1)
    (episode,) = bench.open(1)
    own = child(episode, 1, graded=True, reward=Reward(0.5))
    world.store.write_segment(episode, segment(0), [child(episode), own])
    world.store.complete(episode, graded(1))
    claim = bench.claim()
    family = claim.items[0].trajectories[0].family
    assert len(family) == 3

    def arrays(trajectory: UUID) -> Trained:
        return Trained(trajectory, np.full(3, -0.5, np.float32), None, np.ones(3, np.float32), None)

    bench.commit(claim.items, trained=[arrays(member.id) for member in family])
    if isinstance(world, PostgresWorld):
        used = world.store.rows(
            "select t.trajectory, w.value from agentrl.trained t join agentrl.reward w on w.id = t.reward_id where t.run = %s",
            (bench.run,),
        )
        assert dict(used) == {member.id: member.reward.value for member in family if member.reward}
        with pytest.raises(BadValue, match="was not consumed"):
            world.store.rows("select agentrl.add_trained_v2(%s, 1, 1, %s, '', null, '', null, null)", (bench.run, uuid4()))


def test_dropped_episode__takes_its_sub_agents_and_its_retry_starts_new_ones(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0), [child(episode)])
    assert world.store.complete(episode, FAILED) is Place.DROPPED
    bench.check()
    (retry,) = (e for e in bench.open() if e.attempt == 2)
    assert world.store.trajectory(retry.trajectory).sub_agents == ()
    world.store.write_segment(retry, segment(0), [child(retry)])
    world.store.complete(retry, graded(1))
    bench.check()


def test_liveness__a_parked_episode_is_continued_with_what_is_stored(world: World) -> None:
    bench = world.bench(resume_partial=True, lag_bound=0, batch_min=1, batch_max=1)
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0), [child(episode)])
    assert world.store.park(episode)
    (again,) = bench.open(1)
    assert (again.trajectory, again.n_segments) == (episode.trajectory, 1)
    assert len(world.store.trajectory(again.trajectory).sub_agents) == 1
    world.store.write_segment(again, segment(1), [child(again, 1, parent_segment=1)])
    world.store.complete(again, graded(2))
    assert [s.seat for s in bench.claim().items[0].trajectories[0].sub_agents] == [0, 1]
    bench.check()


def test_evaluation__counts_episodes(world: World) -> None:
    bench = world.bench()
    asked = world.store.request_evaluation(bench.run, version=0, step=0, split="heldout", n=1)
    (episode,) = world.store.open_evaluation_episodes(asked.id, worker="w", request=uuid4(), n=4, lineage=LINEAGE).episodes
    own = child(episode, graded=True, reward=Reward(0.0))
    world.store.write_segment(episode, segment(0), [own])
    assert world.store.complete(episode, graded(1)) is Place.EVALUATED
    (result,) = world.store.evaluation_results(bench.run)
    assert (result.graded, result.successes, result.mean_reward) == (1, 1, 1.0)
    bench.check()


def test_own_verdicts__are_compared_within_the_group(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=0, batch_min=2, batch_max=2)
    for episode in bench.open(2):
        own = child(episode, 1, graded=True, reward=Reward(0.5))
        world.store.write_segment(episode, segment(0), [child(episode), own])
        world.store.complete(episode, graded(1))
    (item,) = bench.claim().items
    first, second = item.trajectories
    assert first.sub_agents[1].group == second.sub_agents[1].group
    assert first.sub_agents[1].group not in (None, first.group)
    assert [member.group for member in (first.sub_agents[0], second.sub_agents[0])] == [None, None]


def imported(world: World) -> tuple[Bench, Bench]:
    source = world.bench(lag_bound=1, batch_min=1, batch_max=1)
    (episode,) = source.open(1)
    own = child(episode, 1, graded=True, reward=Reward(0.5))
    world.store.write_segment(episode, segment(0), [child(episode), own])
    world.store.complete(episode, graded(1))
    target = world.bench(lag_bound=None, batch_min=1, batch_max=1)
    taken = world.store.import_trajectories(target.run, source.run, ImportFilter())
    assert (taken.items, taken.trajectories) == (1, 1)
    return source, target


def test_import__takes_episodes_whole(world: World) -> None:
    _, target = imported(world)
    claim = target.claim()
    (trajectory,) = claim.items[0].trajectories
    assert [s.seat for s in trajectory.sub_agents] == [0, 1]
    arrays = [Trained(m.id, np.zeros(3, np.float32), None, np.zeros(3, np.float32), None) for m in trajectory.family]
    target.commit(claim.items, trained=arrays)
    assert keys(claim.items)
    target.check()


def test_views__show_who_started_whom(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    first = child(episode)
    own = child(episode, 1, parent=first.trajectory, parent_segment=1, graded=True, reward=Reward(0.5))
    postgres.store.write_segment(episode, segment(0), [first, own])
    postgres.store.complete(episode, graded(1))
    rows = postgres.store.query("sub_agents", run=bench.spec.name, limit=10).records()
    shown = [(r["root"], r["parent"], r["parent_seg"], r["reward"], r["own_verdict"], r["actions"]) for r in rows]
    assert shown == [
        (episode.trajectory, episode.trajectory, 0, 1.0, False, 5), (episode.trajectory, first.trajectory, 1, 0.5, True, 5),
    ]  # fmt: skip
    assert not postgres.store.query("token_mismatch", run=bench.spec.name, limit=10).rows
    (by_task,) = postgres.store.query("reward_by_task", run=bench.spec.name, limit=10).records()
    assert (by_task["task_id"], by_task["episodes"]) == ("t0", 1)
    (newest,) = postgres.store.query("latest_trajectory", run=bench.spec.name).records()
    assert newest["trajectory"] == episode.trajectory
