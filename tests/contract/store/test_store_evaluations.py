"""Evaluation episodes: pinned to one version, outside admission, never claimable."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from store_bench import FAILED, LINEAGE, Bench, World, graded, segment

from agentrl.errors import IllegalMove, UnknownVersion, UsageError
from agentrl.store.contract import Evaluation, OpenResult
from agentrl.types import EpisodeEnd, Opened, Outcome, Place, Purpose, Termination


def request(world: World, bench: Bench, n: int = 3) -> Evaluation:
    made: Evaluation = world.store.request_evaluation(bench.run, version=bench.version, step=0, split="heldout", n=n)
    return made


def ask(world: World, evaluation: Evaluation, n: int = 64) -> OpenResult:
    result: OpenResult = world.store.open_evaluation_episodes(
        evaluation.id, worker="w", request=uuid.uuid4(), n=n, lineage=LINEAGE
    )
    return result


def opened(world: World, evaluation: Evaluation, n: int = 64) -> Sequence[Opened]:
    return ask(world, evaluation, n).episodes


def test_evaluation__first_n_tasks_of_the_split_once(world: World) -> None:
    bench = world.bench(lag_bound=0)
    evaluation = request(world, bench)
    assert request(world, bench) == evaluation
    bench.open()
    episodes = [*opened(world, evaluation, 2), *opened(world, evaluation, 2)]
    assert [(e.task.id, e.task.split, e.seat, e.purpose) for e in episodes] == [
        (f"h{i}", "heldout", i, Purpose.EVAL) for i in range(3)
    ]
    assert {e.start_version for e in episodes} == {bench.version}
    assert len({e.seed for e in episodes}) == 3
    assert ask(world, evaluation).refusal == "no_tasks"
    for i, episode in enumerate(episodes):
        assert world.store.pending_evaluation(bench.run).done == i
        world.store.write_segment(episode, segment())
        assert world.store.complete(episode, graded(1, float(i > 0))) is Place.EVALUATED
    assert world.store.pending_evaluation(bench.run) is None
    (result,) = world.store.evaluation_results(bench.run)
    assert (result.graded, result.successes, result.mean_reward) == (3, 2, pytest.approx(2 / 3))
    assert (result.evaluation.done, result.evaluation.finished) == (3, True)
    conservation = world.store.conservation(bench.run)
    assert (conservation.created, conservation.evaluated, conservation.eval_open) == (2, 3, 0)
    assert bench.claim().items == []
    bench.check()


def test_evaluation_failures__retried_then_counted_as_done(world: World) -> None:
    bench = world.bench(max_attempts=2)
    evaluation = request(world, bench, 2)
    good, bad = opened(world, evaluation)
    world.store.write_segment(good, segment())
    world.store.complete(good, graded(1))
    world.store.complete(bad, FAILED)
    assert world.store.pending_evaluation(bench.run) is not None
    (again,) = opened(world, evaluation)
    assert (again.seat, again.attempt) == (1, 2)
    world.store.complete(again, FAILED)
    assert world.store.pending_evaluation(bench.run) is None
    (result,) = world.store.evaluation_results(bench.run)
    assert (result.graded, result.successes, result.evaluation.done) == (1, 1, 1)
    assert ask(world, evaluation).refusal == "no_tasks"
    bench.check()


def test_evaluation_worker_died__episode_served_again(world: World) -> None:
    bench = world.bench(lease_s=60)
    evaluation = request(world, bench, 1)
    (lost,) = opened(world, evaluation)
    world.advance(bench, 61)
    (again,) = opened(world, evaluation)
    assert (again.seat, again.attempt, again.trajectory != lost.trajectory) == (0, 2, True)


def test_evaluation_ended_by_the_policy__evaluated_without_reward(world: World) -> None:
    bench = world.bench()
    evaluation = request(world, bench, 1)
    (episode,) = opened(world, evaluation)
    world.store.write_segment(episode, segment(n=0))
    end = EpisodeEnd(1, Termination.TRUNCATED_TOKENS, Outcome.POLICY_ENDED)
    assert world.store.complete(episode, end) is Place.EVALUATED
    (result,) = world.store.evaluation_results(bench.run)
    assert (result.graded, result.mean_reward, result.evaluation.done) == (0, 0.0, 1)


def test_evaluation_wrong_requests__named(world: World) -> None:
    bench = world.bench()
    with pytest.raises(UsageError, match="4 tasks"):
        request(world, bench, 5)
    with pytest.raises(UsageError, match="nowhere"):
        world.store.request_evaluation(bench.run, version=0, step=0, split="nowhere", n=1)
    with pytest.raises(UnknownVersion):
        world.store.request_evaluation(bench.run, version=9, step=0, split="heldout", n=1)
    staged = world.store.stage_version(bench.run, bench.fence, parent=0, updates=0, uri="s", checksum="c")
    with pytest.raises(IllegalMove):
        world.store.request_evaluation(bench.run, version=staged.version, step=0, split="heldout", n=1)
    with pytest.raises(UsageError):
        world.store.open_evaluation_episodes(10**9, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE)


def test_evaluations__oldest_unfinished_first(world: World) -> None:
    bench = world.bench()
    first = request(world, bench, 1)
    second_version = bench.publish()
    second = world.store.request_evaluation(bench.run, version=second_version, step=1, split="heldout", n=1)
    assert world.store.pending_evaluation(bench.run) == first
    for evaluation in (first, second):
        (episode,) = opened(world, evaluation)
        world.store.write_segment(episode, segment())
        world.store.complete(episode, graded(1))
    assert [r.evaluation.id for r in world.store.evaluation_results(bench.run)] == [first.id, second.id]


def test_evaluation_request_id__same_episodes(world: World) -> None:
    bench = world.bench()
    evaluation = request(world, bench)
    key = uuid.uuid4()
    results = [
        world.store.open_evaluation_episodes(evaluation.id, worker="w", request=key, n=2, lineage=LINEAGE) for _ in range(2)
    ]
    assert results[0] == results[1]
