"""A trainer is killed right between its optimizer step and the commit, and between the commit and the publication.

The database itself makes the two moments wide: triggers wait for locks that the test holds, so that the trainer stands where it
is to be killed. Afterwards its transaction is ended as well: what a dead process had asked for must not happen by itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from agentrl.store.embedded import embedded_in_use
from tests.command_line import CommandLine

RUN = "killed-between"
STEPS, BATCH = 4, 8
COMMIT, PUBLICATION = 1, 2
"""Keys of the locks: before step 2 is in the ledger, and before the weights of update 3 have a name."""
LOCKS = 4711
TRIGGERS = f"""
create function public.stand_still() returns trigger language plpgsql as $$
begin
  if new.run = (select id from agentrl.run where name = '{RUN}') then
    perform pg_advisory_xact_lock_shared({LOCKS}, tg_argv[0]::int);
  end if;
  return new;
end $$;
create trigger stand_still before insert on agentrl.step for each row when (new.step = 2)
  execute function public.stand_still({COMMIT});
create trigger stand_still before insert on agentrl.policy_version for each row when (new.updates = 3)
  execute function public.stand_still({PUBLICATION});
"""
NO_TRIGGERS = "drop function public.stand_still cascade"
WAITER = f"select pid from pg_locks where locktype = 'advisory' and classid = {LOCKS} and objid = %s and not granted"


@dataclass
class Database:
    """The database of the run, and the connection that holds the locks."""

    connection: psycopg.Connection
    holder: psycopg.Connection

    def release(self, key: int) -> None:
        self.holder.execute("select pg_advisory_unlock(%s, %s)", (LOCKS, key))

    def rows(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        return self.connection.execute(statement.encode(), parameters).fetchall()

    def of_run(self, statement: str) -> list[tuple[object, ...]]:
        """``statement`` has one %s, for the run."""
        return self.rows(statement, *self.rows("select id from agentrl.run where name = %s", RUN)[0])

    def somebody_stands_at(self, key: int, seconds: float = 300) -> int:
        """The backend that does."""
        deadline = time.monotonic() + seconds
        while not (found := self.rows(WAITER, key)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ((pid,),) = found
        assert isinstance(pid, int)
        return pid


@pytest.fixture
def database(learned: str, command_line: CommandLine) -> Iterator[Database]:
    with (
        embedded_in_use(command_line.base / "home") as url,
        psycopg.connect(url, autocommit=True) as connection,
        psycopg.connect(url, autocommit=True) as holder,
    ):
        connection.execute(TRIGGERS.encode())
        for key in (COMMIT, PUBLICATION):
            holder.execute("select pg_advisory_lock(%s, %s)", (LOCKS, key))
        try:
            yield Database(connection, holder)
        finally:
            holder.execute("select pg_advisory_unlock_all()")
            connection.execute(NO_TRIGGERS.encode())


def kill_trainer(command_line: CommandLine, database: Database, key: int) -> None:
    """Where it stands, and its transaction with it."""
    backend = database.somebody_stands_at(key)
    (trainer,) = [p for p in command_line.processes(RUN) if "agentrl.cli.main trainer " in " ".join(p.cmdline())]
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(10)
    database.rows("select pg_terminate_backend(%s, 10000)", backend)


def test_killed_between_step_commit_and_publication__resumed_and_every_book_is_right(
    command_line: CommandLine, database: Database
) -> None:
    settings = {
        "trainer.steps": STEPS, "trainer.batch": BATCH, "trainer.checkpoint_every": 1, "trainer.lease_s": 2,
        "evaluation.episodes": 8, "evaluation.every": 0, "algorithm.critic.warmup_batches": 0, "sandbox.pool_size": 8,
    }  # fmt: skip
    given = [f"{name}={value}" for name, value in settings.items()]
    running = command_line.start("train", "--env", "code_agent", "--name", RUN, "--seed", "11", *given)
    kill_trainer(command_line, database, COMMIT)
    assert database.of_run("select max(step) from agentrl.step where run = %s") == [(1,)], "what was computed did not happen"
    database.release(COMMIT)
    kill_trainer(command_line, database, PUBLICATION)
    assert database.of_run("select max(step) from agentrl.step where run = %s and abandoned_by is null") == [(3,)]
    assert database.of_run("select max(updates) from agentrl.policy_version where run = %s") == [(2,)]
    database.release(PUBLICATION)
    assert running.wait() == 0, running.output + command_line.errors()
    assert running.output.count("starting it again") == 2
    audit(database)


def audit(database: Database) -> None:
    of_run = database.of_run
    assert of_run("select holds from agentrl.v_conservation where run = %s") == [(True,)]
    assert of_run("select array_agg(step order by step) from agentrl.step where run = %s and abandoned_by is null") == [
        (list(range(1, STEPS + 1)),)
    ]
    live = "from agentrl.consumed where run = %s and abandoned_by is null"
    assert of_run(f"select count(*), count(distinct trajectory), count(distinct item) {live}") == [(STEPS * BATCH,) * 3]
    ((again,),) = of_run(
        "select count(*) from agentrl.consumed a join agentrl.consumed b on b.run = a.run and b.trajectory = a.trajectory"
        " and b.abandoned_by is null where a.run = %s and a.abandoned_by is not null"
    )
    ((abandoned,),) = of_run("select count(*) from agentrl.consumed where run = %s and abandoned_by is not null")
    ((dropped,),) = of_run("select count(*) from agentrl.dropped where run = %s and reason in ('abandoned_branch', 'stale')")
    assert isinstance(abandoned, int)
    assert abandoned >= BATCH, "step 3 was committed and its weights were lost"
    assert isinstance(again, int)
    assert isinstance(dropped, int)
    assert again + dropped >= abandoned, "its trajectories are trained again, or dropped by name"
    assert of_run("select count(*) from agentrl.lease where run = %s") == [(0,)]
    versions_are_right(database)


def versions_are_right(database: Database) -> None:
    of_run = database.of_run
    grows = (
        "select bool_and(staged_at > before and fence >= fence_before and branch >= branch_before) from ("
        " select staged_at, fence, branch, lag(staged_at) over w as before, lag(fence) over w as fence_before,"
        " lag(branch) over w as branch_before from agentrl.policy_version where run = %s window w as (order by version)) v"
    )
    assert of_run(grows) == [(True,)], "names grow strictly with time"
    twice = (
        "select v.uri from agentrl.policy_version v"
        " left join agentrl.policy_version p on p.run = v.run and p.version = v.parent"
        " where v.run = %s and v.status = 'published' and p.uri is distinct from v.uri group by v.uri having count(*) > 1"
    )
    assert of_run(twice) == [], "but for the copy with which a branch opens, no weights are published twice"
    lineage = (
        "select array_agg(v.updates order by v.version) from agentrl.policy_version v"
        " left join agentrl.policy_version p on p.run = v.run and p.version = v.parent"
        " where v.run = %s and v.effective_update = v.updates and v.status = 'published' and p.uri is distinct from v.uri"
        " and not exists (select from agentrl.step s where s.run = v.run and s.branch = v.branch and s.updates = v.updates"
        "                 and s.abandoned_by is not null)"
    )
    assert of_run(lineage) == [(list(range(STEPS + 1)),)], "each update has its weights, once"
    explained = "select explanation from agentrl.v_versions where run = %s and version is null"
    ((gap,),) = of_run(explained)
    assert "step 3 was committed, its trainer ended before the weights got a name; branch 3 goes on" in str(gap)
    copies = of_run("select count(*) from agentrl.v_versions where run = %s and explanation like '%%(a resume)%%'")
    assert copies == [(2,)]
