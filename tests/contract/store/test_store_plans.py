"""The hot statements on a filled store use indexes on the big tables, and a forgotten transaction stops nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from store_bench import Bench, PostgresWorld, Server, graded, keys, segment
from test_store_sub_agents import child

from agentrl.store.contract import Trained
from agentrl.store.postgres import PostgresStore

BIG = ("trajectory", "segment", "trained", "reward", "event", "consumed", "dropped")
STORED = 20_000

_FILL = """
  insert into agentrl.trajectory (run, start_version, id, purpose, split, task_idx, task_id, cursor, seat, attempt, seed,
    worker, fence, model, tokenizer_hash, template_hash, engine, engine_version, engine_dtype, sampling, logprob_kind,
    environment, environment_version, sandbox, origin, ended_at, complete, termination, outcome, ended_to, n_segments,
    n_tokens, n_actions, versions)
  select %(run)s, 0, agentrl.new_id_v1(), 'train', 'train', i %% 8, 't' || i %% 8, i, 0, 1, i, 'w', 0, 'm', 't', 'c', 'local',
    '1', 'float32', '{}', 'sampled', 'toy', '1', '', 'simulated', now(), true, 'terminated', 'graded', 'ready', 1, 2, 1, '{0}'
  from generate_series(1, %(n)s) i;
"""
_FILL_MORE = """
  insert into agentrl.segment (run, start_version, trajectory, seg, context, versions, n_obs, n_act, ids, logprobs,
    finish_reason, observation_text, action_text, tool_calls, tool_results, queue_s, generate_s, tool_s)
  select run, 0, id, 0, 0, '{0}', 1, 1, '\\x0000000001000000', '\\x000080bf', 'stop', 'o', 'a', '[]', '[]', 0, 0, 0
  from agentrl.trajectory where run = %(run)s;
  insert into agentrl.reward (run, trajectory, grader, grader_version, value, success, detail, duration_s)
  select run, id, 'g', '1', 1, true, '{}', 0 from agentrl.trajectory where run = %(run)s;
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  select run, id, f, t, 0, 'w', 'because' from agentrl.trajectory,
    (values (null, 'live'), ('live', 'grade_job'), ('grade_job', 'graded'), ('graded', 'ready')) m (f, t) where run = %(run)s;
  insert into agentrl.step (run, branch, step, updates, policy_updated, trainer_version, batch_hash, n_items, n_trajectories,
    denominators, metrics, fence)
  select %(run)s, 1, s, 0, false, 0, 'h' || s, 100, 100, '{}', '{}', 0 from generate_series(1, 150) s;
  insert into agentrl.consumed (run, branch, step, item, trajectory, start_version, token, oldest_update, lag)
  select run, 1, 1 + cursor %% 150, id, id, 0, 0, 0, 0 from agentrl.trajectory where run = %(run)s and cursor <= 15000;
  insert into agentrl.dropped (run, trajectory, start_version, purpose, from_place, reason, charged, retryable)
  select run, id, 0, 'train', 'ready', 'stale', false, false from agentrl.trajectory where run = %(run)s and cursor > 15000;
"""


@pytest.fixture(scope="module", params=["embedded_server", "system_server"])
def filled(request: pytest.FixtureRequest) -> Iterator[Bench]:
    server: Server = request.getfixturevalue(request.param)
    store = PostgresStore(server.database(), pool_size=1)
    bench = Bench(store)
    bench.start()
    bench.publish()
    with store.transaction() as connection:
        client = psycopg.ClientCursor(connection)
        for statement in (_FILL, *_FILL_MORE.split(";\n")):
            if statement.strip():
                client.execute(statement.encode(), {"run": bench.run, "n": STORED})
        connection.execute("analyze")
    yield bench
    store.close()


def plans(bench: Bench, call: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """What the call gives, and the plan of every statement that the server ran for it, inside functions too."""
    found: list[Any] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said = diagnostic.message_primary or ""
        if "plan:" in said:
            found.append(json.loads(said[said.index("{") :]))

    with bench.store._pool.borrow() as connection:
        connection.add_notice_handler(note)
        connection.execute("load 'auto_explain'")
        for name, value in (
            ("log_min_duration", "0"), ("log_nested_statements", "on"), ("log_format", "json"), ("log_level", "notice"),
            ("log_analyze", "on"), ("log_buffers", "on"),
        ):  # fmt: skip
            connection.execute(f"set auto_explain.{name} = '{value}'".encode())
    try:
        return call(), found
    finally:
        with bench.store._pool.borrow() as connection:
            connection.execute("set auto_explain.log_min_duration = -1")
            connection.remove_notice_handler(note)


def scans(node: Any) -> Iterator[str]:
    """Big tables that a plan reads from end to end."""
    if isinstance(node, dict):
        name = node.get("Relation Name", "").split("_r")[0]
        if node.get("Node Type") == "Seq Scan" and name in BIG:
            yield name
        for value in node.values():
            yield from scans(value)
    elif isinstance(node, list):
        for value in node:
            yield from scans(value)


def test_hot_statements__scan_no_big_table(filled: Bench) -> None:
    bench, store = filled, filled.store
    _, counted = plans(bench, lambda: store.rows("select count(*) from agentrl.trajectory"))
    assert list(scans(counted)) == ["trajectory"], "a scan would be seen"
    episodes, opened = plans(bench, lambda: bench.open(4))
    assert len(episodes) == 4
    _, written = plans(bench, lambda: [store.write_segment(e, segment(0)) for e in episodes])
    _, with_sub_agents = plans(bench, lambda: [store.write_segment(e, segment(1), [child(e)]) for e in episodes])
    _, completed = plans(bench, lambda: [store.complete(e, graded(2)) for e in episodes])
    claim, claimed = plans(bench, bench.claim)
    assert len(claim.items) == 2
    leases = [(i.item, i.token) for i in claim.items]
    _, renewed = plans(bench, lambda: store.renew_leases(bench.run, bench.fence, leases, 60.0))
    members = [member for item in claim.items for member in item.trajectories[0].family]
    trained = [Trained(m.id, np.zeros(3, np.float32), None, np.zeros(3, np.float32), None) for m in members]
    assert len(trained) > len(claim.items)
    _, committed = plans(bench, lambda: bench.commit(claim.items, trained=trained))
    _, restarted = plans(bench, lambda: store.renew_episodes("w", {e.trajectory: e.fence for e in episodes}))
    named = {
        "open": opened, "write": written, "complete": completed, "claim": claimed, "renew": renewed, "commit": committed,
        "renew episodes": restarted, "write with sub-agents": with_sub_agents,
    }  # fmt: skip
    for name, listed in named.items():
        assert listed, name
        assert [(name, table, plan["Query Text"]) for plan in listed for table in scans(plan)] == []


def blocks(node: Any, table: str) -> int:
    """Buffers that the scans of a table touched."""
    if isinstance(node, list):
        return sum(blocks(one, table) for one in node)
    if not isinstance(node, dict):
        return 0
    scanned = node.get("Relation Name") == table and "Scan" in node.get("Node Type", "")
    own = node["Shared Hit Blocks"] + node["Shared Read Blocks"] if scanned else 0
    return own + sum(blocks(value, table) for value in node.values())


@pytest.mark.parametrize("server", ["embedded_server", "system_server"])
def test_renewal_and_commit__read_the_leases_a_few_times(request: pytest.FixtureRequest, server: str) -> None:
    """Consumed leases stay in their table until it is vacuumed: a plan that reads it for each item gets slower all the time.

    Such a plan is made where the table was last analysed while nothing was leased, and is kept for the next steps.
    """
    store = PostgresStore(request.getfixturevalue(server).database(), pool_size=1)
    bench = Bench(store, lag_bound=None, batch_min=64, batch_max=64, max_running=64)
    bench.start()
    bench.publish()
    with store.session() as connection:
        connection.execute("vacuum (analyze)")
    bench.train(12)
    for episode in bench.open():
        bench.finish(episode)
    items = bench.claim().items
    (pages,) = store.row("select pg_relation_size('agentrl.lease') / current_setting('block_size')::int")
    _, renewed = plans(bench, lambda: store.renew_leases(bench.run, bench.fence, keys(items), 60.0))
    _, committed = plans(bench, lambda: bench.commit(items))
    for name, listed in {"renew": renewed, "commit": committed}.items():
        assert 0 < blocks(listed, "lease") <= 4 * (pages + len(items)), name
    store.close()


def test_forgotten_transaction__stops_nobody(postgres: PostgresWorld) -> None:
    """It has read every table and view, and goes on reading while a run trains past the end of its partitions."""
    bench = postgres.bench(group_size=2, lag_bound=1)
    bench.train(1)
    names = postgres.store.rows(
        "select relname::text from pg_class where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p', 'v')"
    )
    with psycopg.connect(postgres.url) as forgotten:
        forgotten.execute("set transaction isolation level repeatable read")
        for (name,) in names:
            forgotten.execute(f"select * from agentrl.{name} limit 1".encode())
        with postgres.store.transaction() as connection:
            connection.execute("alter role current_user set statement_timeout = '20s'")
        try:
            watched = PostgresStore(postgres.url, pool_size=1)
        finally:
            with postgres.store.transaction() as connection:
                connection.execute("alter role current_user reset statement_timeout")
        bench.store = watched
        for _ in range(64):
            bench.publish()
        bench.start(bench.checkpoint(), owner="trainer")
        bench.train(2)
        bench.check()
        other = Bench(watched)
        other.start()
        other.publish()
        other.train(1)
        assert watched.row("select to_regclass(%s) is not null", (f"agentrl.segment_r{bench.run}_v64",)) == (True,)
        assert forgotten.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        watched.close()


def test_private_server__ends_idle_transactions(embedded_server: Server) -> None:
    with psycopg.connect(embedded_server.url) as connection:
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("10min",)
