"""Steps and their ledger: one transaction, exactly once, everything that was claimed accounted for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from store_bench import Bench, PostgresWorld, World, keys

from agentrl.errors import BadValue, CommitRefused, IllegalMove, UnknownVersion
from agentrl.store.contract import Claim, StepCommit, Trained
from agentrl.store.loads import EngineLoad
from agentrl.types import DropReason, Place


def claimed(world: World, **spec: int) -> tuple[Bench, Claim]:
    bench = world.bench(**({"lag_bound": 1, "batch_min": 3, "batch_max": 3} | spec))
    for episode in bench.open(3):
        bench.finish(episode)
    return bench, bench.claim()


def test_commit__consumed_dropped_and_released(world: World) -> None:
    bench, claim = claimed(world)
    first, second, third = claim.items
    dropped = [(second.item, second.token, DropReason.ZERO_VARIANCE)]
    result = bench.commit([first], dropped=dropped, released=keys([third]))
    assert (result.step, result.updates, result.repeated) == (1, 1, False)
    places = world.store.conservation(bench.run).places
    assert (places[Place.CONSUMED], places[Place.DROPPED], places[Place.READY]) == (1, 1, 1)
    assert world.drop_reasons(bench) == {"zero_variance": 1}
    assert world.store.find_run(bench.spec.name).updates == 1


def test_commit_of_a_group__a_row_per_trajectory(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=1, batch_min=4, batch_max=4)
    for episode in bench.open(4):
        bench.finish(episode)
    a, b = bench.claim().items
    bench.commit([a], dropped=[(b.item, b.token, DropReason.ZERO_VARIANCE)])
    assert (bench.place(Place.CONSUMED), bench.place(Place.DROPPED)) == (2, 2)
    bench.check()


def test_critic_only_step__updates_do_not_grow(world: World) -> None:
    bench, claim = claimed(world)
    result = bench.commit(claim.items, policy=False)
    assert (result.step, result.updates) == (1, 0)
    row = world.store.find_run(bench.spec.name)
    assert (row.step, row.updates) == (1, 0)


def test_same_batch_again__first_result(world: World) -> None:
    bench, claim = claimed(world)
    first = bench.commit(claim.items, batch_hash="x")
    assert bench.commit(claim.items, step=1, batch_hash="x") == replace(first, repeated=True)
    with pytest.raises(CommitRefused, match="another batch"):
        bench.commit(claim.items, step=1, batch_hash="y")
    assert world.store.find_run(bench.spec.name).step == 1


def test_commit_refusals__nothing_changes(world: World) -> None:
    bench, claim = claimed(world)
    with pytest.raises(CommitRefused, match="leaves"):
        bench.commit(claim.items[:2])
    with pytest.raises(CommitRefused):
        bench.commit([*claim.items[:2], replace(claim.items[2], token=claim.items[2].token + 1000)])
    with pytest.raises(CommitRefused, match="does not follow"):
        bench.commit(claim.items, step=3)
    with pytest.raises(BadValue, match="twice"):
        bench.commit([*claim.items, claim.items[0]])
    bench.version, version = 77, bench.version
    with pytest.raises(UnknownVersion):
        bench.commit(claim.items)
    bench.version = version
    assert bench.place(Place.LEASE) == 3
    assert world.store.find_run(bench.spec.name).step == 0
    assert bench.commit(claim.items).step == 1


def test_token_of_another_claim__commit_refused(world: World) -> None:
    """Both tokens are valid, each for the other item."""
    bench = world.bench(lag_bound=1, batch_min=1, batch_max=1)
    for episode in bench.open(2):
        bench.finish(episode)
    first, second = bench.claim().items[0], bench.claim().items[0]
    crossed = [replace(first, token=second.token), replace(second, token=first.token)]
    with pytest.raises(CommitRefused):
        world.store.renew_leases(bench.run, bench.fence, keys(crossed), 60.0)
    with pytest.raises(CommitRefused):
        bench.commit(crossed)
    assert bench.place(Place.LEASE) == 2
    assert bench.commit([first, second]).step == 1


def test_reaper_in_the_middle_of_a_commit__waits_for_it(postgres: PostgresWorld) -> None:
    """The leases that a commit has checked stay its own, though they lapse before it ends."""
    bench, claim = claimed(postgres)
    postgres.advance(bench, 100)
    check = "select agentrl.check_claim_v1(r, r.trainer_fence, %s::uuid[], %s::bigint[]) from agentrl.run r where r.id = %s"
    items, tokens = zip(*keys(claim.items), strict=True)

    def lapsed() -> int:
        taken = postgres.store.rows(
            "delete from agentrl.lease where run = %s and agentrl.lapsed_v1(lease_until, lease) returning item", (bench.run,)
        )
        return len(taken)

    assert postgres.overlap(check, (list(items), list(tokens), bench.run), lapsed) == 3


def test_lost_lease__commit_refused(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=2, batch_max=2)
    for episode in bench.open(4):
        bench.finish(episode)
    claim = bench.claim(lease_s=30)
    world.advance(bench, 31)
    bench.open(1)
    with pytest.raises(CommitRefused):
        bench.commit(claim.items)
    with pytest.raises(CommitRefused):
        world.store.renew_leases(bench.run, bench.fence, keys(claim.items), 60)
    bench.check()


@pytest.mark.parametrize(
    ("metrics", "denominators", "field"),
    [
        ({"acc": 0.5, "consistency": math.nan}, {}, "metrics.consistency"),
        ({"a": {"b": [math.inf]}}, {}, r"metrics.a.b\[0\]"),
        ({"text": "\x00"}, {}, "metrics.text"),
        ({}, {"tokens": math.nan}, "denominators.tokens"),
    ],
)
def test_commit_bad_numbers__named(
    world: World, metrics: dict[str, object], denominators: dict[str, float], field: str
) -> None:
    bench, claim = claimed(world)
    commit = StepCommit(1, True, bench.version, "x", denominators, metrics, keys(claim.items))
    with pytest.raises(BadValue, match=field):
        world.store.commit_step(bench.run, bench.fence, commit)
    assert bench.place(Place.LEASE) == 3


def test_trained_arrays__finite_and_kept(world: World) -> None:
    bench, claim = claimed(world)
    ones = np.ones(3, np.float32)
    trained = [Trained(t.id, ones, None, ones * 2, ones * 3, ones[:1]) for i in claim.items for t in i.trajectories]
    with pytest.raises(BadValue, match=r"trained\.advantages"):
        bench.commit(claim.items, trained=[replace(trained[0], advantages=ones * np.float32(np.nan))])
    with pytest.raises(BadValue, match=r"trained\.returns"):
        bench.commit(claim.items, trained=[replace(trained[0], returns=np.ones(2, np.float32))])
    with pytest.raises(BadValue, match=r"trained\.local_advantages"):
        bench.commit(claim.items, trained=[replace(trained[0], local_advantages=np.array([np.inf], np.float32))])
    bench.commit(claim.items, trained=trained)
    assert bench.place(Place.CONSUMED) == 3


def test_trained_rows__readable_in_sql(postgres: PostgresWorld) -> None:
    bench, claim = claimed(postgres)
    values = np.array([0.1, -2.5, 1e-40], np.float32)
    trained = [Trained(t.id, values, values, values, None, values[:2]) for i in claim.items for t in i.trajectories]
    bench.commit(claim.items, trained=trained)
    rows = postgres.store.rows(
        'select agentrl.f4(logprobs), agentrl.f4("values"), agentrl.f4(local_advantages), returns, reward_id is not null'
        " from agentrl.trained where run = %s",
        (bench.run,),
    )
    assert len(rows) == 3
    for logprobs, stored, local, returns, has_reward in rows:
        assert np.array(local, np.float32).tobytes() == values[:2].tobytes()
        assert np.array(logprobs, np.float32).tobytes() == np.array(stored, np.float32).tobytes() == values.tobytes()
        assert (returns, has_reward) == (None, True)


def test_version_names__grow_and_repeat_by_uri(world: World) -> None:
    bench = world.bench()
    store, run, fence = world.store, bench.run, bench.fence
    first = store.stage_version(run, fence, parent=0, updates=0, uri="a", checksum="c")
    assert store.stage_version(run, fence, parent=0, updates=0, uri="a", checksum="c") == first
    with pytest.raises(IllegalMove):
        store.stage_version(run, fence, parent=0, updates=0, uri="a", checksum="other")
    store.fail_version(run, fence, first.version)
    assert store.newest_version(run).version == 0
    again = store.stage_version(run, fence, parent=first.version, updates=0, uri="a", checksum="c")
    assert again.version == first.version + 1
    store.publish_version(run, fence, again.version)
    store.publish_version(run, fence, again.version)
    assert store.newest_version(run).status == "published"
    with pytest.raises(IllegalMove):
        store.fail_version(run, fence, again.version)
    with pytest.raises(IllegalMove):
        store.publish_version(run, fence, first.version)
    with pytest.raises(IllegalMove, match="ledger"):
        store.stage_version(run, fence, parent=0, updates=1, uri="future", checksum="c")
    with pytest.raises(UnknownVersion):
        store.stage_version(run, fence, parent=50, updates=0, uri="orphan", checksum="c")
    with pytest.raises(UnknownVersion):
        store.version(run, 50)
    with pytest.raises(UnknownVersion):
        store.record_engine_load(run, EngineLoad("engine", 50))
    store.record_engine_load(run, EngineLoad("engine", again.version))


def test_checkpoints__of_a_live_step_and_by_uri(world: World) -> None:
    bench = world.bench()
    bench.train(2)
    store, run, fence = world.store, bench.run, bench.fence
    for step, updates in ((1, 2), (3, 3), (0, 1)):
        with pytest.raises(IllegalMove):
            store.add_checkpoint(run, fence, step=step, updates=updates, version=bench.version, uri="x", checksum="c")
    first = store.add_checkpoint(run, fence, step=2, updates=2, version=bench.version, uri="x", checksum="c")
    assert store.add_checkpoint(run, fence, step=2, updates=2, version=bench.version, uri="x", checksum="c") == first
    with pytest.raises(IllegalMove):
        store.add_checkpoint(run, fence, step=2, updates=2, version=bench.version, uri="x", checksum="d")
    bench.train(1)
    second = bench.checkpoint()
    assert [c.id for c in store.checkpoints(run)] == [second, first.id]


def test_checkpoint_that_took_longer_than_a_step__is_of_its_own_step(world: World) -> None:
    bench = world.bench()
    bench.train(2)
    late = {"step": 1, "updates": 1, "version": 1, "uri": "late", "checksum": "c"}
    saved = world.store.add_checkpoint(bench.run, bench.fence, **late)
    assert (saved.step, saved.updates) == (1, 1)
    started = world.take_over(bench, saved.id)
    assert (started.step, started.updates) == (1, 1)
    abandoned = {"step": 2, "updates": 2, "version": 1, "uri": "of the abandoned branch", "checksum": "c"}
    with pytest.raises(IllegalMove, match="no step 2"):
        world.store.add_checkpoint(bench.run, bench.fence, **abandoned)
