"""Claims: whole, in range, oldest first, all or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from store_bench import FAILED, PostgresWorld, World, graded, keys, segment

from agentrl.errors import CommitRefused, Fenced, UnknownOutcome
from agentrl.store.contract import Claim
from agentrl.store.patience import outlasting
from agentrl.types import Place


def test_surplus__stays_queued(world: World) -> None:
    bench = world.bench(lag_bound=None, batch_min=2, batch_max=4, n_tasks=10)
    for episode in bench.open(10):
        bench.finish(episode)
    sizes = []
    for _ in range(3):
        claim = bench.claim()
        sizes.append(len(claim.items))
        bench.commit(claim.items)
    assert sizes == [4, 4, 2]
    assert bench.place(Place.CONSUMED) == 10
    bench.check()


def test_too_few__nothing_is_leased(world: World) -> None:
    bench = world.bench(lag_bound=1)
    (first, *_) = bench.open()
    bench.finish(first)
    claim = bench.claim()
    assert (claim.items, claim.waiting, claim.examined, claim.admissible) == ([], "rollouts", 1, 1)
    assert bench.place(Place.READY) == 1
    assert claim.counts[Place.LIVE] == 3


def test_oldest_first__then_arrival(world: World) -> None:
    bench = world.bench(lag_bound=3, batch_min=1, batch_max=1)
    a, b, c, _ = bench.open()
    root = bench.version
    bench.finish(b)
    bench.commit(bench.claim().items)
    newer = bench.publish()
    bench.finish(c, version=newer)
    bench.finish(a, version=root)
    order = [t.id for _ in range(2) for i in bench.claim().items for t in i.trajectories]
    assert order == [a.trajectory, c.trajectory]


@pytest.mark.parametrize("bound", [1, 3])
def test_stale_boundary__lag_at_the_limit_is_accepted(world: World, bound: int) -> None:
    bench = world.bench(lag_bound=bound, batch_min=4, batch_max=4, n_tasks=20)
    kept, lost, *others = bench.open()
    root = bench.version
    for _ in range(bound):
        bench.finish(others.pop(), version=bench.version)
        bench.commit(bench.claim(1, 1).items)
        bench.publish()
    bench.finish(kept, version=root)
    claim = bench.claim(1, 1)
    assert [i.lag for i in claim.items] == [bound]
    bench.commit(claim.items)
    bench.publish()
    bench.finish(lost, version=root)
    world.advance(bench, 2)
    assert bench.claim().items == []
    assert world.drop_reasons(bench) == {"stale": 1}
    bench.check()


def test_oldest_token_counts__not_the_start_version(world: World) -> None:
    bench = world.bench(lag_bound=2, batch_min=1, batch_max=1, n_tasks=20)
    late, mixed, *others = bench.open()
    root = bench.version
    world.store.write_segment(mixed, segment(0, version=root))
    for episode in others[:1]:
        bench.finish(episode)
        bench.commit(bench.claim().items)
        bench.publish()
    world.store.write_segment(mixed, segment(1, n=2, versions=np.array([root, bench.version], np.int32)))
    world.store.complete(mixed, graded(2))
    bench.finish(late)
    lags = {t.id: i.lag for _ in range(2) for i in bench.claim().items for t in i.trajectories}
    assert lags == {mixed.trajectory: 1, late.trajectory: 0}, "an episode that waited and ran on new weights is fresh"


def test_groups__claimed_whole(world: World) -> None:
    bench = world.bench(group_size=3, batch_min=3, batch_max=6, lag_bound=3)
    for episode in bench.open(9):
        bench.finish(episode)
    claim = world.store.claim(bench.run, bench.fence, n_min=3, n_max=8, lease_s=60)
    assert [len(i.trajectories) for i in claim.items] == [3, 3]
    assert [[t.seat for t in i.trajectories] for i in claim.items] == [[0, 1, 2]] * 2
    assert bench.place(Place.LEASE) == 6


def test_end_of_work__short_batch(world: World) -> None:
    bench = world.bench(lag_bound=1, batch_min=2, batch_max=2)
    first, second = bench.open(2)
    bench.finish(first)
    world.store.set_run_status(bench.run, "finished")
    assert bench.claim().waiting == "rollouts", "one episode is still running"
    world.store.complete(second, FAILED)
    claim = bench.claim()
    assert (len(claim.items), claim.waiting) == (1, "nothing")
    bench.commit(claim.items)
    claim = bench.claim()
    assert (claim.items, claim.waiting) == ([], "nothing")


def test_pending_retry__work_can_still_arise(world: World) -> None:
    bench = world.bench(lag_bound=0, batch_min=2, batch_max=2, target_steps=1)
    first, second = bench.open()
    bench.finish(first)
    world.store.complete(second, FAILED)
    assert bench.claim().waiting == "rollouts"
    (again,) = bench.open()
    bench.finish(again)
    assert len(bench.claim().items) == 2


def test_claim_in_parts__what_is_held_is_not_waited_for(world: World) -> None:
    """A step may lease its batch in several claims; at the end of the data it must hear that no more will come."""
    bench = world.bench(lag_bound=0, batch_min=4, batch_max=4)
    first, second, third, lost = bench.open()
    bench.finish(first)
    bench.finish(second)
    held = bench.claim(2, 4)
    assert (len(held.items), held.waiting) == (2, None)
    bench.store.set_run_status(bench.run, "interrupted")
    assert bench.claim(2, 2).waiting == "rollouts"
    bench.finish(third)
    world.store.complete(lost, FAILED)
    last = bench.claim(2, 2)
    assert (len(last.items), last.waiting) == (1, "nothing")
    bench.commit([*held.items, *last.items])
    bench.check()


def test_claim_forgotten(world: World) -> None:
    """The reply of a claim is lost: the same call again takes the same items, and no attempt of theirs is used up."""
    bench = world.bench(lag_bound=0, max_lease_attempts=1)
    for episode in bench.open():
        bench.finish(episode)
    ask = {"n_min": 2, "n_max": 2, "lease_s": 60.0}
    first, second, third = (world.store.claim(bench.run, bench.fence, **ask) for _ in range(3))
    assert [i.item for i in first.items] == [i.item for i in second.items] == [i.item for i in third.items]
    assert (third.waiting, third.counts[Place.LEASE], third.counts[Place.READY]) == (None, 2, 0)
    with pytest.raises(CommitRefused):
        world.store.renew_leases(bench.run, bench.fence, keys(second.items), 60)
    bench.commit(third.items)
    bench.check()


def test_claim_forgotten__what_the_step_holds_stays_its_own(world: World) -> None:
    bench = world.bench(lag_bound=0, batch_min=4, batch_max=4, max_lease_attempts=1)
    for episode in bench.open():
        bench.finish(episode)
    held = bench.claim(2, 2)
    lost = bench.claim(2, 2)
    bench.tokens.remove(lost.items[0].token)
    again = bench.claim(2, 2)
    assert [i.item for i in again.items] == [i.item for i in lost.items]
    world.store.renew_leases(bench.run, bench.fence, keys(held.items), 60)
    bench.tokens.clear()
    assert [i.item for i in bench.claim(2, 2).items] == [i.item for i in again.items], "an update keeps what it has"
    bench.check()


def test_claim_forgotten__while_it_is_still_on_its_way(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    for episode in bench.open():
        bench.finish(episode)
    claim = "select agentrl.claim_v3(%s, %s, 2::bigint, 2::bigint, 60::float8, null::text[], '{}'::bigint[])"
    again = postgres.overlap(claim, (bench.run, bench.fence), bench.claim)
    assert len(again.items) == 2
    bench.commit(again.items)
    bench.check()


def test_connection_that_breaks_while_a_claim_is_read__the_claim_is_repeated(world: World) -> None:
    bench = world.bench(lag_bound=0)
    for episode in bench.open():
        bench.finish(episode)

    class Breaking:
        calls = 0

        def claim(self, *arguments: Any, **named: Any) -> Claim:
            found: Claim = world.store.claim(*arguments, **named)
            self.calls += 1
            if self.calls == 1:
                raise UnknownOutcome("the connection broke while the trajectories were read")
            return found

    said: list[str] = []
    patient: Any = outlasting(Breaking(), 30.0, lambda: False, said.append)  # type: ignore[arg-type]
    found = patient.claim(bench.run, bench.fence, n_min=2, n_max=2, lease_s=60.0)
    assert (len(found.items), len(said)) == (2, 1)
    bench.commit(found.items)


def test_liveness(world: World) -> None:
    """If nothing runs and the batch is not full, something is admissible: every shape of run reaches its steps."""
    for bound in (0, 1, 2):
        for group in (1, 2):
            for batch in (2, 4):
                bench = world.bench(lag_bound=bound, batch_min=batch, batch_max=batch, group_size=group, n_tasks=3)
                bench.train(3)
                assert world.store.find_run(bench.spec.name).step == 3
                bench.check()


def test_claim_with_a_stale_fence__refused(world: World) -> None:
    bench = world.bench()
    for episode in bench.open():
        bench.finish(episode)
    claim = bench.claim()
    old = bench.fence
    world.store.release_trainer(bench.run, old)
    bench.start(owner="second")
    bench.fence, new = old, bench.fence
    with pytest.raises(Fenced):
        bench.claim()
    with pytest.raises(Fenced):
        world.store.renew_leases(bench.run, old, keys(claim.items), 60)
    with pytest.raises(Fenced):
        bench.commit(claim.items)
    with pytest.raises(Fenced):
        bench.checkpoint()
    with pytest.raises(Fenced):
        bench.publish()
    with pytest.raises(Fenced):
        world.store.renew_trainer(bench.run, old, 60)
    bench.fence = new
    assert len(bench.claim().items) == 2


def test_renewal__checks_leases(world: World) -> None:
    bench = world.bench()
    for episode in bench.open():
        bench.finish(episode)
    claim = bench.claim()
    world.store.renew_leases(bench.run, bench.fence, keys(claim.items), 60)
    with pytest.raises(CommitRefused):
        world.store.renew_leases(bench.run, bench.fence, [(i, token + 1) for i, token in keys(claim.items)], 60)
