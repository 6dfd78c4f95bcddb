"""A login that does not own the schema works and trains as agentrl_worker, and can do no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy.engine import make_url
from store_bench import FAILED, Bench, PostgresWorld, segment

from agentrl.errors import UsageError
from agentrl.store.contract import ImportFilter, Trained
from agentrl.store.postgres import PostgresStore
from agentrl.store.retention import retain
from agentrl.store.vacuum import vacuum
from agentrl.types import EpisodeEnd, Outcome, Reward, Termination


@pytest.fixture
def worker(postgres: PostgresWorld) -> Iterator[PostgresStore]:
    """A store whose login has nothing but the role, as docs/howto/use-your-own-server.md makes it."""
    with postgres.store.transaction() as connection:
        connection.execute("drop role if exists rollout")
        connection.execute("create role rollout login password 'secret'")
        connection.execute("grant agentrl_worker to rollout")
    url = make_url(postgres.url).set(username="rollout", password="secret")
    store = PostgresStore(url.render_as_string(hide_password=False), pool_size=2)
    yield store
    store.close()
    postgres.store.rows("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'rollout'")
    with postgres.store.transaction() as connection:
        connection.execute("drop role rollout")


def test_worker__does_all_that_a_run_does(worker: PostgresStore) -> None:
    bench = Bench(worker, lag_bound=1)
    bench.start()
    bench.publish()
    failed, ungraded, *rest = bench.open(4)
    worker.complete(failed, FAILED)
    worker.write_segment(ungraded, segment(0))
    worker.complete(ungraded, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    (job,) = worker.claim_grades(bench.run, worker="judge", n=1, lease_s=60)
    worker.grade(job.trajectory.id, job.fence, Reward(1.0))
    worker.renew_episodes("w", {e.trajectory: e.fence for e in rest})
    for episode in rest:
        bench.finish(episode)
    claim = bench.claim()
    ones = np.ones(3, np.float32)
    trained = [Trained(i.item, ones, None, ones, None) for i in claim.items]
    worker.renew_leases(bench.run, bench.fence, [(i.item, i.token) for i in claim.items], 60.0)
    bench.commit(claim.items, trained=trained)
    while bench.version < 65:
        bench.publish()
    bench.checkpoint()
    worker.regrade(job.trajectory.id, Reward(0.5))
    evaluation = worker.request_evaluation(bench.run, version=64, step=1, split="heldout", n=1)
    assert worker.pending_evaluation(bench.run).id == evaluation.id
    worker.release_trainer(bench.run, bench.fence)
    bench.start(owner="second")
    other = Bench(worker, n_tasks=0, lag_bound=None)
    assert worker.import_trajectories(other.run, bench.run, ImportFilter()).items >= 2
    worker.set_run_status(bench.run, "finished")
    bench.check()
    other.check()
    assert worker.row("select to_regclass(%s) is not null", (f"agentrl.segment_r{bench.run}_v64",)) == (True,)


@pytest.mark.parametrize(
    "statement",
    [
        "delete from agentrl.event", "delete from agentrl.segment", "delete from agentrl.reward", "drop table agentrl.live",
        "truncate agentrl.ready", "create table agentrl.mine (n int)", "update agentrl.alembic_version set version_num = ''",
        "alter table agentrl.run add column n int",
    ],
)  # fmt: skip
def test_worker__can_not_remove_what_was_recorded_nor_change_the_schema(worker: PostgresStore, statement: str) -> None:
    with pytest.raises(UsageError, match="owner"), worker.transaction() as connection:
        connection.execute(statement.encode())


def test_worker__leaves_retention_and_vacuum_to_the_owner(worker: PostgresStore) -> None:
    bench = Bench(worker, lag_bound=0)
    bench.start()
    bench.publish()
    bench.train(1)
    while bench.version < 64:
        bench.publish()
    bench.train(1)
    bench.checkpoint()
    with pytest.raises(UsageError, match="need the owner of the schema"):
        retain(worker, bench.run, 1)
    with pytest.raises(UsageError, match="need the owner of the schema"):
        vacuum(worker, bench.run, timedelta())
    bench.check()
