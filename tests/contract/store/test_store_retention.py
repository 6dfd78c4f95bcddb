"""Retention: old versions go a partition at a time, whatever is needed stays, and the books balance at every moment."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from store_bench import CANCELLED, FAILED, LINEAGE, Bench, PostgresWorld, graded, segment

from agentrl.errors import NotReadyError, UsageError
from agentrl.store import retention
from agentrl.store.contract import ImportFilter
from agentrl.store.retention import removed_by_retention, retain, retention_plan
from agentrl.types import EpisodeEnd, Outcome, Place, Termination

UNGRADED = EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED)


def trained_past_a_bucket(postgres: PostgresWorld, **spec: object) -> Bench:
    """A run with two trained steps in versions 0 to 63, a third one after them, and a checkpoint at its end."""
    bench = postgres.bench(**({"lag_bound": 0} | spec))
    bench.train(2)
    publish_until(bench, 64)
    bench.train(1)
    bench.checkpoint()
    return bench


def publish_until(bench: Bench, version: int) -> None:
    while bench.version < version:
        bench.publish()


def tables(postgres: PostgresWorld, bench: Bench) -> set[tuple[str, str]]:
    return set(postgres.store.rows("select part, state from agentrl.bucket_tables_v1(%s) where low = 0", (bench.run,)))


@contextmanager
def open_transaction(postgres: PostgresWorld, query: str) -> Iterator[None]:
    """A user who asked something and forgot to end the transaction."""
    with psycopg.connect(postgres.url) as user:
        user.execute(query.encode())
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOCK_TIMEOUT_S", 0.2)


def test_retain__removes_old_versions_and_keeps_the_books(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    old, *_ = postgres.store.row("select min(id::text)::uuid from agentrl.trajectory where run = %s", (bench.run,))
    before = postgres.store.conservation(bench.run)
    done = retain(postgres.store, bench.run, 1)
    assert [(b.low, b.high, b.created, b.evaluated) for b in done.removed] == [(0, 64, 4, 0)]
    assert done.removed[0].bytes > 0
    assert tables(postgres, bench) == set()
    assert postgres.store.conservation(bench.run) == before
    assert postgres.store.trajectory(old) is None
    assert postgres.store.row("select count(*) from agentrl.consumed where run = %s", (bench.run,)) == (6,)
    assert "removed by retention" in (removed_by_retention(postgres.store, old) or "")
    assert retain(postgres.store, bench.run, 1).removed == []
    bench.train(1)
    bench.check()


def test_plan__changes_nothing(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    (bucket,) = retention_plan(postgres.store, bench.run, 1)
    assert (bucket.needed, bucket.retired, bucket.created) == (None, False, 4)
    assert {state for _, state in tables(postgres, bench)} == {"attached"}
    assert postgres.store.rows("select 1 from agentrl.retired where run = %s", (bench.run,)) == []


def test_keep_versions__counts_published_ones(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    newer = bench.version - 63
    assert len(retention_plan(postgres.store, bench.run, newer)) == 1
    assert retention_plan(postgres.store, bench.run, newer + 1) == []
    assert retention_plan(postgres.store, bench.run, 1000) == []
    with pytest.raises(UsageError, match="at least 1"):
        retention_plan(postgres.store, bench.run, 0)


def test_other_runs__are_left_alone(postgres: PostgresWorld) -> None:
    bench, other = (trained_past_a_bucket(postgres) for _ in range(2))
    retain(postgres.store, bench.run, 1)
    assert {state for _, state in tables(postgres, other)} == {"attached"}
    other.check()


def kept(postgres: PostgresWorld, bench: Bench) -> str:
    """The reason for which the first bucket is kept, by the plan and by the call alike."""
    (planned,) = retention_plan(postgres.store, bench.run, 1)
    done = retain(postgres.store, bench.run, 1)
    assert done.removed == []
    assert [b.needed for b in done.kept] == [planned.needed]
    bench.check()
    return planned.needed or ""


def test_running__is_kept(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=2)
    a, b = bench.open(2)
    bench.finish(b)
    publish_until(bench, 64)
    bench.store.write_segment(a, segment(0, 0))
    # A step with other data, so that versions up to 63 are old.
    for episode in bench.open(2):
        bench.finish(episode)
    bench.commit(bench.claim().items)
    bench.checkpoint()
    assert f'1 running in run "{bench.spec.name}"' in kept(postgres, bench)
    postgres.store.complete(a, graded(1))
    assert "ready" in kept(postgres, bench)


def test_leased_and_waiting_for_a_verdict__are_kept(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=4, batch_min=1, batch_max=1)
    episodes = bench.open(3)
    for e in episodes[:2]:
        bench.finish(e)
    bench.store.write_segment(episodes[2], segment(0, 0))
    bench.store.complete(episodes[2], UNGRADED)
    bench.commit(bench.claim(1, 1).items)
    publish_until(bench, 64)
    (new,) = bench.open(1)
    bench.claim(1, 1)
    bench.finish(new)
    postgres.store.release_trainer(bench.run, bench.fence)
    assert "1 waiting for a verdict" in kept_until_old(postgres, bench)


def kept_until_old(postgres: PostgresWorld, bench: Bench) -> str:
    """As `kept`, after the ledger was told that the trainer holds a new version."""
    with postgres.store.transaction() as c:
        c.execute("update agentrl.step set trainer_version = 64 where run = %s", (bench.run,))
    return kept(postgres, bench)


def test_pending_retry__is_kept_until_it_was_served(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    a, b = bench.open(2)
    bench.finish(a)
    postgres.store.complete(b, FAILED)
    publish_until(bench, 64)
    (retry,) = bench.open(1)
    bench.finish(retry)
    bench.commit(bench.claim().items)
    bench.publish()
    c, d = bench.open(2)
    bench.finish(c)
    bench.finish(d)
    bench.commit(bench.claim().items)
    bench.checkpoint()
    assert len(retain(postgres.store, bench.run, 1).removed) == 1
    bench.check()

    other = postgres.bench(lag_bound=None, max_running=64)
    (waiting, *rest) = other.open(3)
    for episode in rest:
        other.finish(episode)
    postgres.store.complete(waiting, CANCELLED)
    other.commit(other.claim().items)
    publish_until(other, 64)
    other.checkpoint()
    assert "1 to be tried again" in kept_until_old(postgres, other)


def test_unfinished_evaluation__is_kept(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    evaluation = postgres.store.request_evaluation(bench.run, version=0, step=0, split="heldout", n=2)
    bench.train(1)
    publish_until(bench, 64)
    bench.train(1)
    bench.checkpoint()
    assert "of the unfinished evaluation of version 0" in kept(postgres, bench)
    opened = postgres.store.open_evaluation_episodes(evaluation.id, worker="w", request=uuid.uuid4(), n=2, lineage=LINEAGE)
    assert "2 running" in kept(postgres, bench)
    for episode in opened.episodes:
        postgres.store.write_segment(episode, segment(0, 0))
        postgres.store.complete(episode, graded(1))
    (removed,) = retain(postgres.store, bench.run, 1).removed
    assert (removed.created, removed.evaluated) == (2, 2)
    (result,) = postgres.store.evaluation_results(bench.run)
    assert (result.graded, result.mean_reward) == (2, 1.0)
    assert postgres.store.conservation(bench.run).evaluated == 2
    # The finished evaluation is still known to whoever asks again; a new one of these versions is refused.
    assert postgres.store.request_evaluation(bench.run, version=0, step=0, split="heldout", n=2).id == evaluation.id
    with pytest.raises(UsageError, match="removed by retention"):
        postgres.store.request_evaluation(bench.run, version=0, step=0, split="train", n=2)


def test_steps_after_the_newest_checkpoint__are_kept(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    publish_until(bench, 64)
    bench.train(1)
    assert "2 trained after the newest checkpoint" in kept(postgres, bench)
    bench.checkpoint()
    assert len(retain(postgres.store, bench.run, 1).removed) == 1


def test_importers__hold_what_they_have_not_trained_and_saved(postgres: PostgresWorld) -> None:
    source = trained_past_a_bucket(postgres)
    other = postgres.bench(n_tasks=0, lag_bound=None)
    postgres.store.import_trajectories(other.run, source.run, ImportFilter(last_step=2))
    assert f'4 ready in run "{other.spec.name}"' in kept(postgres, source)
    claim = other.claim(4, 4)
    assert f'4 leased in run "{other.spec.name}"' in kept(postgres, source)
    other.commit(claim.items)
    assert f'4 trained after the newest checkpoint in run "{other.spec.name}"' in kept(postgres, source)
    other.checkpoint()
    assert len(retain(postgres.store, source.run, 1).removed) == 1
    source.check()
    other.check()
    third = postgres.bench(n_tasks=0, lag_bound=None)
    assert postgres.store.import_trajectories(third.run, source.run, ImportFilter()).items == 2


def test_resume_from_before_what_was_removed__drops_it(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(1)
    first = bench.checkpoint()
    bench.train(1)
    publish_until(bench, 64)
    bench.train(1)
    bench.checkpoint()
    retain(postgres.store, bench.run, 1)
    postgres.store.release_trainer(bench.run, bench.fence)
    bench.start(first, owner="second")
    bench.check()
    reasons = postgres.store.rows(
        "select reason, detail from agentrl.dropped where run = %s and detail = 'removed by retention'", (bench.run,)
    )
    assert reasons == [("abandoned_branch", "removed by retention")] * 2
    bench.train(1)
    bench.check()


def test_opening_on_a_removed_version__refused(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    retain(postgres.store, bench.run, 1)
    with pytest.raises(UsageError, match="removed by retention"):
        postgres.store.rows(
            "select agentrl.start_episode_v1(r, 'train', null, 3::bigint, 'train', 0::bigint, 0::bigint, null, 0::bigint,"
            " 1::bigint, 0::bigint, null, 'k', 'w', '{}') from agentrl.run r where id = %s",
            (bench.run,),
        )


def test_forgotten_transaction__stops_neither_writers_nor_the_books(postgres: PostgresWorld, impatient: None) -> None:
    """The user's transaction has read everything and stays open; retention gives up, and a later call finishes."""
    bench = trained_past_a_bucket(postgres)
    before = postgres.store.conservation(bench.run)
    everything = "select (select count(*) from agentrl.trajectory), (select count(*) from agentrl.segment)"
    with open_transaction(postgres, everything):
        for _ in range(2):
            with pytest.raises(NotReadyError, match=r"process \d+ of user .* run the same command again"):
                retain(postgres.store, bench.run, 1)
            assert postgres.store.conservation(bench.run) == before
        assert (f"trajectory_r{bench.run}_v0", "pending") in tables(postgres, bench)
        other = postgres.bench(lag_bound=0)
        other.train(1)
        publish_until(other, 70)
        bench.train(1)
        bench.check()
    done = retain(postgres.store, bench.run, 1)
    assert [b.low for b in done.removed] == [0]
    assert tables(postgres, bench) == set()
    bench.check()


@pytest.mark.parametrize("crash_after", range(7))
def test_crash_between_any_two_statements__finished_by_the_next_call(
    postgres: PostgresWorld, crash_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = trained_past_a_bucket(postgres)
    before = postgres.store.conservation(bench.run)
    real, calls = retention._alter, iter(range(crash_after))

    def alter(*arguments: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(retention, "_alter", alter)
        if crash_after < 6:
            with pytest.raises(KeyboardInterrupt):
                retain(postgres.store, bench.run, 1)
        else:
            retain(postgres.store, bench.run, 1)
    assert postgres.store.conservation(bench.run) == before
    assert len(retain(postgres.store, bench.run, 1).removed) == (crash_after < 6)
    assert tables(postgres, bench) == set()
    assert postgres.store.conservation(bench.run) == before


def test_evaluation_asked_for_meanwhile__is_seen(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    with ThreadPoolExecutor(1) as pool:
        with postgres.store.transaction() as trainer:
            trainer.execute(
                "select agentrl.request_evaluation_v1(%s, 3::bigint, 1::bigint, 'heldout', 2::bigint)", (bench.run,)
            )
            future = pool.submit(retain, postgres.store, bench.run, 1)
            time.sleep(0.3)
            assert not future.done()
        assert [b.needed for b in future.result().kept] == [
            f'1 of the unfinished evaluation of version 3 in run "{bench.spec.name}"'
        ]


def test_trainer_start_meanwhile__is_waited_for(postgres: PostgresWorld) -> None:
    """It returns to ready what it trained after an older checkpoint than the newest."""
    bench = postgres.bench(lag_bound=None, max_running=2)
    bench.train(1)
    first = bench.checkpoint()
    bench.train(1)
    publish_until(bench, 64)
    bench.train(1)
    bench.checkpoint()
    postgres.store.release_trainer(bench.run, bench.fence)
    start = "select agentrl.start_trainer_v1(%s, 'second', 60, %s)"
    done = postgres.overlap(start, (bench.run, first), lambda: retain(postgres.store, bench.run, 1))
    assert done.removed == []
    bench.check()


def test_import_at_work__retention_gives_up(postgres: PostgresWorld, impatient: None) -> None:
    bench = trained_past_a_bucket(postgres)
    with postgres.store.transaction() as importer:
        importer.execute("select pg_advisory_xact_lock_shared(hashtext('agentrl.retention'), %s::int)", (bench.run,))
        with pytest.raises(NotReadyError, match="again later"):
            retain(postgres.store, bench.run, 1)
    assert len(retain(postgres.store, bench.run, 1).removed) == 1


def test_retention_at_work__a_second_one_gives_up(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    with retention._alone(postgres.store), pytest.raises(NotReadyError, match="Another `agentrl db retain` is at work"):
        retain(postgres.store, bench.run, 1)
    assert len(retain(postgres.store, bench.run, 1).removed) == 1


def test_old_requests__are_forgotten(postgres: PostgresWorld) -> None:
    bench = trained_past_a_bucket(postgres)
    with postgres.store.transaction() as connection:
        connection.execute(
            "update agentrl.open_request set at = at - %s where run = %s and start_version = 0", (timedelta(days=2), bench.run)
        )
    (left,) = postgres.store.row("select count(*) from agentrl.open_request where run = %s", (bench.run,))
    assert retain(postgres.store, bench.run, 1).requests == 1
    assert postgres.store.row("select count(*) from agentrl.open_request where run = %s", (bench.run,)) == (left - 1,)
    assert bench.place(Place.CONSUMED) == 6
