"""The shortest trace of each reading that the protocol model refutes, played against the real stores.

Each test has the name of a configuration of ``agentrl.store.model`` and asserts what the store does at the point where that
reading goes wrong. ``python -m agentrl.store.model NAME`` prints the trace; docs/design/protocol-model.md has the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from store_bench import CANCELLED, LINEAGE, Bench, PostgresWorld, Server, World, graded, keys, segment

from agentrl.errors import (
    Fenced,
    IllegalMove,
    IncompleteTrajectory,
    SegmentGap,
    UnknownOutcome,
    UsageError,
)
from agentrl.store.codec import lineage_json
from agentrl.store.embedded import start_embedded
from agentrl.store.loads import EngineLoad
from agentrl.store.postgres import PostgresStore
from agentrl.types import Opened, Place

START = "select agentrl.start_trainer_v1(%s, 'successor', 1000, null)"
LONG = 100_000.0


def strict(world: World, **spec: Any) -> Bench:
    """One trajectory a step and no lag, as in the model; leases of episodes outlast those of the trainer."""
    return world.bench(**({"lag_bound": 0, "batch_min": 1, "batch_max": 1, "lease_s": LONG} | spec))


def one_step(bench: Bench, publish: bool = True) -> Opened:
    """The episode that the step trained."""
    (episode,) = bench.open(1)
    bench.finish(episode)
    bench.commit(bench.claim().items)
    if publish:
        bench.publish()
    return episode


def trained(bench: Bench) -> list[uuid.UUID]:
    """Trajectories of the next claim, which is committed."""
    claim = bench.claim(lease_s=LONG)
    if claim.items:
        bench.commit(claim.items)
    return [t.id for item in claim.items for t in item.trajectories]


# admission ------------------------------------------------------------------------------------------------------------
def test_admission_by_largest_batch(world: World) -> None:
    bench = strict(world, lag_bound=1, batch_max=2)
    for _ in range(3):
        episodes = bench.open()
        assert len(episodes) + bench.place(Place.READY) == 2  # what two updates surely take
        for episode in episodes:
            bench.finish(episode)
        bench.commit(bench.claim(1, 1).items)
        bench.publish()
    assert bench.place(Place.DROPPED) == 0


def test_admission_before(world: World) -> None:
    bench = strict(world)
    assert len(bench.open(1, worker="W0")) == 1
    refused = bench.ask(1, worker="W1")
    assert (refused.episodes, refused.refusal) == ([], "no_capacity")


def test_admission_unlocked(postgres: PostgresWorld) -> None:
    bench = strict(postgres)
    first = (bench.run, "W0", uuid.uuid4(), 1, bench.version, lineage_json(LINEAGE))
    second = postgres.overlap("select agentrl.open_v1(%s, %s, %s, %s, %s, %s)", first, lambda: bench.ask(1, worker="W1"))
    assert second.refusal == "no_capacity"
    assert bench.place(Place.LIVE) == 1


def test_capacity_at_commit(world: World) -> None:
    bench = strict(world)
    old = bench.version
    one_step(bench, publish=False)
    assert bench.ask(1, engine=old).refusal == "no_capacity", "the committed step is not in the engine yet"
    bench.publish()
    assert bench.ask(1, engine=old).refusal == "no_capacity"
    (episode,) = bench.open(1)
    bench.finish(episode)
    world.advance(bench, 2)
    assert trained(bench) == [episode.trajectory]
    assert world.drop_reasons(bench) == {}


def test_capacity_at_commit_lag_1(world: World) -> None:
    bench = strict(world, lag_bound=1)
    old = bench.version
    first, second = bench.open(2)
    bench.finish(first)
    bench.finish(second)
    assert trained(bench) == [first.trajectory]
    assert bench.ask(1, engine=old).refusal == "no_capacity", "this one would be trained two updates late"
    bench.publish()
    (third,) = bench.open(1)
    bench.finish(third)
    assert trained(bench) == [second.trajectory]
    world.advance(bench, 2)
    assert trained(bench) == [third.trajectory]
    assert world.drop_reasons(bench) == {}


def test_bound_in_every_state(world: World) -> None:
    bench = strict(world)
    again = one_step(bench)
    (running,) = bench.open(1)
    world.take_over(bench)
    assert bench.place(Place.READY) + bench.place(Place.LIVE) == 2, "above the bound of 1, by the item that came back"
    assert bench.ask(1).refusal == "no_capacity"
    world.store.complete(running, CANCELLED)
    assert bench.ask(1).refusal == "no_capacity", "nothing opens until it has drained"
    assert trained(bench) == [again.trajectory]
    bench.publish()
    assert len(bench.open(2)) == 1
    bench.check()


def test_group_opens_whole(world: World) -> None:
    bench = world.bench(lag_bound=0, group_size=2, batch_min=2, batch_max=2)
    (first,) = bench.open(1, worker="W0")
    (second,) = bench.open(1, worker="W1")
    assert first.group == second.group
    bench.finish(first)
    bench.finish(second)
    assert len(bench.claim().items) == 1


def test_expired_row__its_retry_needs_no_room(world: World) -> None:
    bench = strict(world, lease_s=60)
    (lost,) = bench.open(1, worker="W0")
    assert bench.ask(1, worker="W1").refusal == "no_capacity"
    world.advance(bench, 61)
    (again,) = bench.open(1, worker="W1")
    assert (again.task_index, again.attempt) == (lost.task_index, 2)
    bench.finish(again)
    assert trained(bench) == [again.trajectory]


def lost_after_a_turn(world: World, **spec: Any) -> tuple[Bench, Opened]:
    """A run that continues episodes, and one whose worker died after a turn."""
    bench = strict(world, lease_s=60, resume_partial=True, **spec)
    (episode,) = bench.open(1, worker="W0")
    bench.store.write_segment(episode, segment(0, bench.version))
    world.advance(bench, 61)
    return bench, episode


def test_parked_needs_room(world: World) -> None:
    bench, lost = lost_after_a_turn(world)
    (again,) = bench.open(1, worker="W1")
    assert (again.trajectory, again.n_segments) == (lost.trajectory, 1), "it fills the only place, and is served"
    assert bench.ask(1, worker="W2").refusal == "no_capacity"
    bench.store.write_segment(again, segment(1, bench.version))
    assert bench.store.complete(again, graded(2)) is Place.READY
    assert trained(bench) == [lost.trajectory]


def test_parked_uncharged(world: World) -> None:
    bench, deadly = lost_after_a_turn(world, max_attempts=2, n_tasks=2)
    (again,) = bench.open(1, worker="W1")
    assert again.trajectory == deadly.trajectory
    world.advance(bench, 61)
    (other,) = bench.open(1, worker="W2")
    assert (other.task_index, other.attempt) == (1, 1), "its second worker died too: it is served to nobody any more"
    assert bench.place(Place.DROPPED) == 1
    bench.check()


def test_deadline_keeps_seats(world: World) -> None:
    bench = strict(world, group_size=2, batch_min=2, batch_max=2, group_deadline_s=100.0)
    (first,) = bench.open(1)
    world.advance(bench, 101)
    seats = bench.open()
    assert [s.task_index for s in seats] == [1, 1], "the second seat of the given-up group could never be completed"
    with pytest.raises(Fenced):
        bench.finish(first)
    for seat in seats:
        bench.finish(seat)
    assert set(trained(bench)) == {s.trajectory for s in seats}
    bench.check()


def test_deadline_spares_running(world: World) -> None:
    bench = strict(world, group_size=2, batch_min=2, batch_max=2, group_deadline_s=100.0)
    first, straggler = bench.open()
    assert bench.finish(first) is Place.GRADED
    world.advance(bench, 101)
    bench.open()
    with pytest.raises(Fenced):
        bench.finish(straggler)
    assert world.drop_reasons(bench) == {"group_incomplete": 2}
    assert bench.place(Place.GRADED) == 0, "it would have waited for the first one for ever"
    bench.check()


# fences, leases, locks ------------------------------------------------------------------------------------------------
def test_claim_unfenced(world: World) -> None:
    bench = strict(world, max_lease_attempts=1)
    (episode,) = bench.open(1)
    bench.finish(episode)
    stalled = bench.fence, bench.version
    world.take_over(bench)
    with bench.acting(*stalled), pytest.raises(Fenced):
        bench.claim(lease_s=1)
    world.advance(bench, 10)
    assert trained(bench) == [episode.trajectory], "no lease of the stale trainer could lapse and be charged"


def checkpoint_row(bench: Bench) -> tuple[str, tuple[object, ...]]:
    """The statement that commits a checkpoint of the present head under the present fence."""
    values = (bench.run, bench.fence, 1, 1, bench.version, "ck", "c")
    return "select agentrl.add_checkpoint_v1(%s, %s, %s, %s, %s, %s, %s)", values


def version_row(bench: Bench) -> tuple[str, tuple[object, ...]]:
    """The statement that stages weights with one update under the present fence."""
    return "select agentrl.stage_version_v1(%s, %s, %s, %s, %s, %s)", (bench.run, bench.fence, bench.version, 1, "w", "c")


def test_fence_unlocked__start_first(postgres: PostgresWorld) -> None:
    bench = strict(postgres)
    one_step(bench)
    postgres.advance(bench, 2000)
    assert isinstance(postgres.overlap(START, (bench.run,), bench.checkpoint), Fenced)
    assert postgres.store.checkpoints(bench.run) == []


def test_fence_unlocked__checkpoint_first(postgres: PostgresWorld) -> None:
    bench = strict(postgres)
    one_step(bench)
    postgres.advance(bench, 2000)
    started = postgres.overlap(*checkpoint_row(bench), lambda: bench.start(owner="successor"))
    assert (started.step, started.branch) == (0, 2)
    assert postgres.store.checkpoints(bench.run) == [], "committed before the start, which abandoned it"


def test_version_unlocked__start_first(postgres: PostgresWorld) -> None:
    bench = strict(postgres)
    one_step(bench, publish=False)
    postgres.advance(bench, 2000)
    assert isinstance(postgres.overlap(START, (bench.run,), bench.publish), Fenced)
    newest = postgres.store.newest_version(bench.run)
    assert newest is not None
    assert (newest.updates, newest.status) == (0, "published")


def test_version_unlocked__version_first(postgres: PostgresWorld) -> None:
    bench = strict(postgres)
    one_step(bench, publish=False)
    stalled = bench.fence, bench.version + 1
    postgres.advance(bench, 2000)
    started = postgres.overlap(*version_row(bench), lambda: bench.start(owner="successor"))
    assert started.version.version == stalled[1] + 1
    assert postgres.store.newest_version(bench.run) == started.version, "not the one of the abandoned step"
    with pytest.raises(Fenced):
        postgres.store.publish_version(bench.run, *stalled)


def test_ready_unlocked(postgres: PostgresWorld) -> None:
    bench = strict(postgres, lag_bound=1)
    again = one_step(bench)
    (episode,) = bench.open(1)
    postgres.store.write_segment(episode, segment(0, bench.version))
    postgres.advance(bench, 2000)
    done = postgres.overlap(START, (bench.run,), lambda: postgres.store.complete(episode, graded(1)))
    assert done is Place.READY
    bench.fence = postgres.store.row("select trainer_fence from agentrl.run where id = %s", (bench.run,))[0]
    lags = {t.id: i.lag for i in bench.claim(1, 64).items for t in i.trajectories}
    assert lags == {again.trajectory: 0, episode.trajectory: 1}, "on the new branch: head 0, token 1, common 0"


def test_refused_restarts(world: World) -> None:
    bench = strict(world)
    stalled = bench.fence, bench.version
    world.take_over(bench)
    with bench.acting(*stalled), pytest.raises(Fenced):
        bench.claim()
    with pytest.raises(Fenced, match="holds run"):
        world.store.start_trainer(bench.run, owner="restarted", lease_s=60, checkpoint=None)
    world.store.renew_trainer(bench.run, bench.fence, 60)
    one_step(bench)


def test_death_uncharged(world: World) -> None:
    bench = strict(world, max_lease_attempts=2)
    (poison,) = bench.open(1)
    bench.finish(poison)
    for _ in range(2):
        claim = bench.claim(lease_s=LONG)
        assert [t.id for i in claim.items for t in i.trajectories] == [poison.trajectory]
        world.store.renew_leases(bench.run, bench.fence, keys(claim.items), LONG)
        world.take_over(bench)
    assert world.drop_reasons(bench) == {"max_attempts": 1}
    assert one_step(bench).task_index == 1
    bench.check()


@pytest.fixture
def private_server() -> Iterator[Server]:
    server = Server("outage", None, durable=True)
    yield server
    server.close()


def test_outage_without_grace(private_server: Server) -> None:
    store = PostgresStore(private_server.url, pool_size=2)
    world = PostgresWorld("outage", store, private_server.url)
    bench = world.bench(lag_bound=1, lease_s=3600)
    (episode,) = bench.open(1)
    private_server.kill()
    with pytest.raises(UnknownOutcome):
        bench.ask(1, worker="other")
    start_embedded(private_server.home)
    world.advance(bench, 7200)
    assert bench.open(1, worker="other")[0].attempt == 1
    assert world.drop_reasons(bench) == {}
    assert store.write_segment(episode, segment(0))
    store.close()


# weights --------------------------------------------------------------------------------------------------------------
def test_failed_version_waits(world: World) -> None:
    bench = strict(world)
    store, old = world.store, bench.version
    one_step(bench, publish=False)
    burnt = store.stage_version(bench.run, bench.fence, parent=old, updates=1, uri="w", checksum="c")
    store.fail_version(bench.run, bench.fence, burnt.version)
    assert store.newest_version(bench.run).version == old
    assert bench.ask(1, engine=old).refusal == "no_capacity", "no step can come before new weights"
    again = store.stage_version(bench.run, bench.fence, parent=burnt.version, updates=1, uri="w", checksum="c")
    assert again.version == burnt.version + 1
    store.publish_version(bench.run, bench.fence, again.version)
    assert len(bench.open(1, engine=again.version)) == 1


def test_publish_waits_for_pull(world: World) -> None:
    bench = strict(world)
    old = bench.version
    one_step(bench)
    newest = world.store.newest_version(bench.run)
    assert (newest.version, newest.status) == (bench.version, "published"), "no engine has loaded it"
    assert bench.ask(1, engine=old).refusal == "no_capacity"
    assert len(bench.open(1, engine=newest.version)) == 1


def test_pull_between_turns(world: World) -> None:
    """An idle worker gets nothing with old weights; what it is to load is known all the same."""
    bench = strict(world)
    old = bench.version
    world.take_over(bench)
    one_step(bench)
    assert bench.ask(1, engine=old).refusal == "no_capacity"
    newest = world.store.newest_version(bench.run)
    world.store.record_engine_load(bench.run, EngineLoad("W0", newest.version))
    assert len(bench.open(1, engine=newest.version)) == 1


def test_pull_between_turns_uncounted(world: World) -> None:
    bench = strict(world)
    old = bench.version
    one_step(bench)
    for _ in range(3):
        assert bench.ask(1, engine=old).refusal == "no_capacity"
    (episode,) = bench.open(1)
    bench.finish(episode)
    world.advance(bench, 2)
    assert trained(bench) == [episode.trajectory]
    assert world.drop_reasons(bench) == {}


def test_push_trusted(world: World) -> None:
    bench = strict(world)
    base = bench.version
    one_step(bench)
    assert bench.ask(1, engine=base).refusal == "no_capacity", "the engine came back with the base weights"
    assert world.store.newest_version(bench.run).version == bench.version, "what the worker compares with"
    assert len(bench.open(1)) == 1


# resume ---------------------------------------------------------------------------------------------------------------
def test_abandoned_items_stay(world: World) -> None:
    bench = strict(world)
    episode = one_step(bench)
    started = world.take_over(bench)
    assert (started.step, started.returned) == (0, 1)
    assert (bench.place(Place.CONSUMED), bench.place(Place.READY)) == (0, 1)
    bench.check()
    assert trained(bench) == [episode.trajectory]
    assert bench.place(Place.CONSUMED) == 1
    bench.check()


def test_checkpoint_highest_step(world: World) -> None:
    bench = strict(world)
    episode = one_step(bench)
    highest = bench.checkpoint()
    world.take_over(bench)
    assert world.store.checkpoints(bench.run) == []
    world.advance(bench, 2000)
    with pytest.raises(UsageError, match="live history"):
        bench.start(highest, owner="third")
    bench.start(owner="third")
    assert trained(bench) == [episode.trajectory]
    assert world.store.find_run(bench.spec.name).step == 1, "trained once on the live history"


def test_checkpoint_of_head_only(world: World) -> None:
    """A checkpoint that was written beside the next step counts, and a resume goes back no further."""
    bench = strict(world)
    one_step(bench)
    saved = {"step": 1, "updates": 1, "version": bench.version}
    later = one_step(bench)
    row = world.store.add_checkpoint(bench.run, bench.fence, uri="step-1", checksum="c", **saved)
    world.advance(bench, 2000)
    assert bench.start(row.id, owner="second").step == 1
    row_now = world.store.find_run(bench.spec.name)
    assert (row_now.step, row_now.updates) == (1, 1)
    assert trained(bench) == [later.trajectory], "what came after it is taken again"


def test_checkpoint_file_by_step(world: World) -> None:
    bench = strict(world)
    one_step(bench)
    stalled = bench.fence, bench.version
    world.take_over(bench)
    assert trained(bench)
    bench.publish()
    save = {"step": 1, "updates": 1, "version": bench.version}
    kept = world.store.add_checkpoint(bench.run, bench.fence, uri="step-1", checksum="ours", **save)
    with pytest.raises(Fenced):
        world.store.add_checkpoint(bench.run, stalled[0], uri="step-1", checksum="theirs", **save)
    with pytest.raises(IllegalMove):
        world.store.add_checkpoint(bench.run, bench.fence, uri="step-1", checksum="theirs", **save)
    assert world.store.checkpoints(bench.run) == [kept]


def test_lag_by_numbers(world: World) -> None:
    bench = strict(world)
    again = one_step(bench)
    (episode,) = bench.open(1)
    assert bench.finish(episode) is Place.READY
    started = world.take_over(bench)
    assert (started.returned, started.dropped) == (1, 1)
    assert world.drop_reasons(bench) == {"abandoned_branch": 1}
    assert trained(bench) == [again.trajectory]
    bench.publish()
    assert trained(bench) == [], "one update on each branch: the numbers are equal, the lag is 2"
    bench.check()


def test_future_by_updates(world: World) -> None:
    bench = strict(world)
    one_step(bench)
    (episode,) = bench.open(1)
    dead = bench.version
    world.take_over(bench)
    assert world.store.find_run(bench.spec.name).updates == 0
    assert world.store.write_segment(episode, segment(0, dead)), "more updates than the ledger, but a name that has a row"


# segments -------------------------------------------------------------------------------------------------------------
def test_next_seg_set(world: World) -> None:
    bench = strict(world)
    (episode,) = bench.open(1)
    for i in (0, 1):
        assert world.store.write_segment(episode, segment(i))
    assert world.store.write_segment(episode, segment(0)) is False, "a late copy"
    assert world.store.write_segment(episode, segment(2)) is True
    assert world.store.complete(episode, graded(3)) is Place.READY


def test_fence_kept(world: World) -> None:
    bench, episode = lost_after_a_turn(world)
    (again,) = bench.open(1, worker="W1")
    late = segment(1, bench.version, action_text="of the worker that was thought dead")
    with pytest.raises(Fenced):
        world.store.write_segment(episode, late)
    assert world.store.write_segment(again, segment(1, bench.version)) is True, "no other body lies under its key"
    assert world.store.complete(again, graded(2)) is Place.READY


def test_count_unchecked(world: World) -> None:
    bench = strict(world)
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0))
    with pytest.raises(IncompleteTrajectory) as missing:
        world.store.complete(episode, graded(3))
    for i in range(missing.value.next_seg, 3):
        assert world.store.write_segment(episode, segment(i))
    assert world.store.complete(episode, graded(3)) is Place.READY


def test_segments_not_kept(world: World) -> None:
    bench = strict(world)
    (episode,) = bench.open(1)
    with pytest.raises(SegmentGap) as gap:
        world.store.write_segment(episode, segment(2))
    for i in range(gap.value.next_seg, 3):
        assert world.store.write_segment(episode, segment(i))
    assert world.store.complete(episode, graded(3)) is Place.READY
