"""The views for people on small runs: each says what happened, and NaN reaches no average."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace

import psycopg
import pytest
from store_bench import CANCELLED, FAILED, LINEAGE, Bench, PostgresWorld, Server, graded, segment

from agentrl.store.loads import EngineLoad
from agentrl.store.postgres import PostgresStore
from agentrl.store.saved_queries import saved_queries
from agentrl.types import EpisodeEnd, Opened, Outcome, Place, Reward, Termination, Timings, ToolCall, ToolResult

VIEWS = (
    "v_runs", "v_conservation", "v_trajectories",
    "v_stuck", "v_dropped_by_reason", "v_staleness", "v_reward_by_task", "v_groups",
    "v_zero_variance",
    "v_tool_errors", "v_stop_reasons", "v_token_mismatch", "v_step_timing", "v_workers", "v_grader_disagreement",
    "v_versions", "v_engines", "v_alerts",
)  # fmt: skip


def view(bench: Bench, name: str, order: str = "1") -> list[dict[str, object]]:
    """Rows of a view for the run of the bench."""
    with bench.store.transaction() as connection:
        cursor = connection.execute(f"select * from agentrl.{name} where run = %s order by {order}".encode(), (bench.run,))
        columns = [c.name for c in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def test_every_view__has_run_and_name_first_and_a_saved_query(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    queries = "\n".join(q.sql for q in saved_queries().values())
    for name in VIEWS:
        columns = postgres.store.rows(
            "select attname::text from pg_attribute where attrelid = %s::regclass and attnum > 0 order by attnum",
            (f"agentrl.{name}",),
        )
        assert columns[:2] == [("run",), ("run_name",)], name
        assert f"agentrl.{name}" in queries
        assert {row["run_name"] for row in view(bench, name)} <= {bench.spec.name}


def test_v_runs__places_and_trainer(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=2)
    bench.train(2)
    first, *_ = bench.open(3)
    bench.finish(first)
    (row,) = view(bench, "v_runs")
    assert (row["step"], row["updates"], row["policy_version"], row["status"]) == (2, 2, 2, "running")
    assert (row["trainer"], row["trainer_lapsed"], row["leased"]) == ("trainer", False, 0)
    assert (row["running"], row["ready"]) == (bench.place(Place.LIVE), bench.place(Place.READY))
    postgres.advance(bench, 2000)
    assert view(bench, "v_runs")[0]["trainer_lapsed"] is True


def test_v_conservation__is_the_stores(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    bench.train(1)
    bench.open(1)
    (row,) = view(bench, "v_conservation")
    assert (row["created"], row["consumed"], row["ready"], row["live"], row["holds"]) == (5, 2, 2, 1, True)


def test_v_stuck__says_what_each_waits_for(postgres: PostgresWorld) -> None:
    bench = postgres.bench(batch_min=4, batch_max=4, lag_bound=2, lease_s=100.0)
    running, ready, ungraded, trained = bench.open(4)
    bench.finish(trained)
    bench.claim(1, 1)
    bench.finish(ready)
    bench.store.write_segment(ungraded, segment(0))
    bench.store.complete(ungraded, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    why = {row["trajectory"]: row["why"] for row in view(bench, "v_stuck")}
    assert why == {
        running.trajectory: "running",
        ready.trajectory: "waits for the trainer",
        ungraded.trajectory: "waits for a reward worker",
        trained.trajectory: "is being trained",
    }
    bench.store.rows(
        "update agentrl.trajectory set started_at = now() - interval '2 h' where id = %s returning id", (running.trajectory,)
    )
    row = next(r for r in view(bench, "v_stuck") if r["trajectory"] == running.trajectory)
    assert (row["why"], row["lapsed"], row["holder"], row["task_id"]) == ("running too long", False, "w", running.task.id)
    assert row["waiting_s"] == pytest.approx(7200, abs=60)
    postgres.advance(bench, 1000)
    rows = {r["trajectory"]: r for r in view(bench, "v_stuck")}
    assert [rows[t.trajectory]["why"] for t in (running, trained)] == ["lease lapsed"] * 2


def test_v_trajectories__a_line_each_with_the_place_that_holds_it(postgres: PostgresWorld) -> None:
    bench = postgres.bench(group_size=2, batch_min=2, batch_max=2, lag_bound=9, max_attempts=1)
    groups: dict[object, list[Opened]] = {}
    for episode in bench.open(14):
        groups.setdefault(episode.group, []).append(episode)
    trained, leased, ready, waiting, failing, ungraded, _running = groups.values()
    for claimed in (trained, leased):
        for value, episode in enumerate(claimed):
            bench.finish(episode, value=float(value))
        items = bench.claim().items
        if claimed is trained:
            bench.commit(items)
    for episode in (*ready, waiting[0]):
        bench.finish(episode)
    bench.store.complete(failing[0], FAILED)
    bench.store.write_segment(ungraded[0], segment(0))
    bench.store.complete(ungraded[0], EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    bench.store.request_evaluation(bench.run, version=bench.version, step=0, split="heldout", n=1)
    evaluation = bench.store.pending_evaluation(bench.run)
    (scored,) = bench.store.open_evaluation_episodes(
        evaluation.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE
    ).episodes
    bench.finish(scored)
    rows = {row["trajectory"]: row for row in view(bench, "v_trajectories")}
    places = dict(bench.store.rows("select trajectory, place from agentrl.trajectory_state where run = %s", (bench.run,)))
    assert {identity: row["place"] for identity, row in rows.items()} == places
    assert set(places.values()) == set(Place)
    for value, episode in enumerate(trained):
        line = rows[episode.trajectory]
        assert (line["reward"], line["success"], line["step"], line["lag"], line["grp"]) == (
            value,
            value > 0,
            1,
            0,
            episode.group,
        )
        assert (line["segments"], line["tokens"], line["actions"]) == (1, 7, 3)
        assert (line["first_version"], line["last_version"]) == (0, 0)
    lost = rows[failing[0].trajectory]
    assert (lost["drop_reason"], lost["error"], lost["outcome"]) == ("infrastructure", "the sandbox died", "infrastructure")
    assert rows[scored.trajectory]["purpose"] == "eval"


def test_v_trajectories__of_one_that_runs_has_what_is_stored_so_far(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    bench.store.write_segment(episode, segment(0))
    (line,) = view(bench, "v_trajectories")
    assert (line["place"], line["termination"], line["segments"], line["actions"], line["last_version"]) == (
        "live",
        None,
        1,
        3,
        0,
    )
    assert line["duration_s"] > 0
    assert line["ended_at"] is None


def test_v_dropped_by_reason__counts_and_retries(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    a, b = bench.open(2)
    bench.store.complete(a, FAILED)
    bench.store.complete(b, CANCELLED)
    bench.open(1)
    rows = {r["reason"]: r for r in view(bench, "v_dropped_by_reason")}
    assert (rows["infrastructure"]["trajectories"], rows["infrastructure"]["example"]) == (1, "the sandbox died")
    assert rows["cancelled"]["newest"] == b.trajectory
    assert sum(r["retried"] + r["waiting_for_retry"] for r in rows.values()) == 2  # type: ignore[misc]


def test_episode_errors__kinds_without_their_tasks(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    for number, episode in enumerate(bench.open(3)):
        said = f"EnvironmentFault: environment 'e', task '{episode.task.id}', method 'look' raised KeyError: {number} (e.py:3)"
        bench.store.complete(episode, replace(FAILED, error=said))
    (row,) = bench.store.query("episode_errors", run=str(bench.run)).records()
    assert (row["episodes"], row["tasks"], row["termination"]) == (3, 3, "failed")
    assert row["error"].startswith("EnvironmentFault: environment 'e', task '")
    assert row["error"].endswith("method 'look' raised KeyError: 2 (e.py:3)"), "the newest"


def test_latest_trajectory__one_with_a_verdict_if_there_is_any(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    assert bench.store.query("latest_trajectory", run=str(bench.run)).records() == []
    first, second, third = bench.open(3)
    bench.store.complete(first, FAILED)
    latest = bench.store.query("latest_trajectory", run=str(bench.run)).records()
    assert [(row["trajectory"], row["outcome"]) for row in latest] == [(first.trajectory, "infrastructure")]
    bench.finish(second)
    bench.store.complete(third, FAILED)
    latest = bench.store.query("latest_trajectory", run=str(bench.run)).records()
    assert [(row["trajectory"], row["outcome"]) for row in latest] == [(second.trajectory, "graded")]


def test_v_staleness__mean_percentile_and_largest_by_step(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=2)
    bench.train(3)
    rows = view(bench, "v_staleness", "step")
    assert [r["step"] for r in rows] == [1, 2, 3]
    for r in rows:
        lags = [
            lag
            for (lag,) in bench.store.rows(
                "select lag from agentrl.consumed where run = %s and step = %s", (bench.run, r["step"])
            )
        ]
        assert (r["trajectories"], r["max_lag"], r["p95_lag"]) == (len(lags), max(lags), max(lags))
        assert r["mean_lag"] == pytest.approx(sum(lags) / len(lags))


def test_v_reward_by_task__newest_verdict_of_ended_episodes(postgres: PostgresWorld) -> None:
    bench = postgres.bench(n_tasks=1, batch_min=4, batch_max=4)
    a, b, c, _ = bench.open(4)
    bench.finish(a, value=1.0)
    bench.finish(b, value=0.0)
    bench.store.complete(c, FAILED)
    bench.store.regrade(b.trajectory, Reward(0.5, True, grader="second"))
    (row,) = view(bench, "v_reward_by_task")
    assert (row["task_id"], row["episodes"], row["graded"]) == ("t0", 3, 2)
    assert (row["mean_reward"], row["success"], row["action_tokens"]) == (0.75, 1.0, 3.0)
    assert row["spread"] == pytest.approx(math.sqrt(0.125))


def test_v_groups_and_v_zero_variance__seats_and_spread(postgres: PostgresWorld) -> None:
    bench = postgres.bench(group_size=2, lag_bound=3)
    by_group: dict[object, list[object]] = {}
    for episode in bench.open(6):
        by_group.setdefault(episode.group, []).append(episode)
    equal, spread, failing = by_group
    for episode in by_group[equal]:
        bench.finish(episode, value=0.5)
    for value, episode in enumerate(by_group[spread]):
        bench.finish(episode, value=float(value))
    bench.finish(by_group[failing][0])
    bench.store.complete(by_group[failing][1], FAILED)
    rows = {r["grp"]: r for r in view(bench, "v_groups")}
    assert [rows[g]["state"] for g in (equal, spread, failing)] == ["complete", "complete", "open"]
    lost = rows[failing]
    assert (lost["size"], lost["opened"], lost["attempts"], lost["graded"], lost["failed"], lost["running"]) == (
        2,
        2,
        2,
        1,
        1,
        0,
    )
    assert (rows[spread]["mean_reward"], rows[spread]["spread"]) == (0.5, pytest.approx(math.sqrt(0.5)))
    (flat,) = view(bench, "v_zero_variance")
    assert (flat["grp"], flat["reward"], flat["size"], flat["step"]) == (equal, 0.5, 2, None)
    bench.commit(bench.claim(2, 2).items)
    assert view(bench, "v_zero_variance")[0]["step"] == 1


def test_v_tool_errors__counts_by_tool_without_nan(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    calls = (ToolCall("run", {}), ToolCall("run", {}), ToolCall("", None, "no JSON"), ToolCall("run", {}))
    results = (
        ToolResult("run", "fine", duration_s=1.0),
        ToolResult("run", "error: \x00 died", is_error=True, duration_s=3.0),
        ToolResult("", "error: bad tool call", is_error=True),
        ToolResult("run", "fine", duration_s=math.nan),
    )
    bench.store.write_segment(episode, segment(0, tool_calls=calls, tool_results=results))
    rows = {r["tool"]: r for r in view(bench, "v_tool_errors")}
    run = rows["run"]
    assert (run["calls"], run["errors"], run["unreadable"], run["mean_s"]) == (3, 1, 0, 2.0)
    assert run["error_share"] == pytest.approx(1 / 3)
    assert (run["newest"], run["example"]) == (episode.trajectory, "error: \N{REPLACEMENT CHARACTER} died")
    assert (rows[""]["calls"], rows[""]["errors"], rows[""]["unreadable"]) == (1, 1, 1)


def test_v_stop_reasons__running_reaped_and_ended(postgres: PostgresWorld) -> None:
    bench = postgres.bench(batch_min=4, batch_max=4, max_attempts=1)
    a, b, *_ = bench.open(4)
    bench.finish(a)
    bench.store.write_segment(b, segment(0))
    bench.store.complete(b, EpisodeEnd(1, Termination.TRUNCATED_TURNS, Outcome.POLICY_ENDED))
    rows = {r["termination"]: r for r in view(bench, "v_stop_reasons")}
    assert {k: r["trajectories"] for k, r in rows.items()} == {"terminated": 1, "truncated_turns": 1, "running": 2}
    assert (rows["terminated"]["mean_reward"], rows["truncated_turns"]["mean_reward"]) == (1.0, None)
    assert sum(r["share"] for r in rows.values()) == pytest.approx(1.0)  # type: ignore[misc]
    postgres.advance(bench, 1000)
    bench.claim()
    assert {r["termination"] for r in view(bench, "v_stop_reasons")} == {"terminated", "truncated_turns", "reaped"}


DAMAGE = (
    ("segment set ids = ids || '\\x00'", "ids hold 29 bytes for 7 tokens"),
    ("segment set logprobs = ''", "logprobs hold 0 bytes for 3 action tokens"),
    ("segment set loss_mask = '\\x01'", "loss_mask holds 1 bytes for 3 action tokens"),
    ("segment set unit_starts = '\\x01'", "unit_starts hold 1 bytes for 3 action tokens"),
    ("segment set token_versions = '\\x00'", "token_versions hold 1 bytes for 3 action tokens"),
    ("segment set versions = '{0,1}'", "versions {0,1} are not those of the 3 action tokens"),
    ("segment set versions = '{}'", "versions {} are not those of the 3 action tokens"),
    ("segment set versions = '{99}'", "of the versions {99} some have no row"),
    ("segment set context = 2", "context 2 follows context 0"),
    ("segment set seg = 1", "segment 1 follows segment -1"),
    ("trajectory set n_segments = 2", "2 segments announced, 1 stored"),
    ("trajectory set n_tokens = 8", "8 tokens announced, 7 stored"),
    ("trajectory set n_actions = 2", "2 action tokens announced, 3 stored"),
)


def test_v_token_mismatch__names_each_disagreement(embedded_server: Server) -> None:
    """In a database of its own, whose checks are off so that rows can be damaged."""
    store = PostgresStore(embedded_server.database())
    bench = Bench(store)
    bench.start()
    bench.publish()
    bench.train(1)
    checks = store.rows(
        "select conname::text from pg_constraint where conrelid = 'agentrl.segment'::regclass and contype = 'c'"
    )
    for (name,) in checks:
        with store.transaction() as connection:
            connection.execute(f'alter table agentrl.segment drop constraint "{name}"'.encode())
    assert view(bench, "v_token_mismatch") == []
    for damage, problem in DAMAGE:
        with store.transaction() as connection:
            connection.execute(f"update agentrl.{damage}".encode())
            found = connection.execute("select problem from agentrl.v_token_mismatch").fetchall()
            assert set(found) == {(problem,)}, damage
            raise psycopg.Rollback
    store.close()


def test_v_step_timing__from_the_metrics_of_live_steps(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=2)
    bench.train(2)
    bench.store.rows(
        "update agentrl.step set metrics = %s::jsonb where run = %s and step = 2 returning 1",
        ('{"wall_s": 4, "wait_s": 1, "train_s": 2.5, "sync_share": 0.25, "tokens_per_s": "NaN"}', bench.run),
    )
    first, second = view(bench, "v_step_timing", "step")
    assert (first["wall_s"], first["wait_share"]) == (None, None)
    assert (second["wait_share"], second["train_s"], second["sync_s"], second["tokens_per_s"]) == (0.25, 2.5, 1.0, None)
    assert 0 <= second["since_last_s"] < 60  # type: ignore[operator]
    assert 0 <= second["data_age_s"] < 60  # type: ignore[operator]


def test_v_workers__newest_sign_of_life(postgres: PostgresWorld) -> None:
    bench = postgres.bench(batch_min=4, batch_max=4)
    bench.ask(2, worker="busy")
    (idle,) = bench.ask(1, worker="idle").episodes
    bench.finish(idle)
    bench.store.record_engine_load(bench.run, EngineLoad("evaluator", bench.version))
    rows = {r["worker"]: r for r in view(bench, "v_workers")}
    assert {w: (r["role"], r["holds"]) for w, r in rows.items()} == {
        "busy": ("rollout", 2), "idle": ("rollout", 0), "evaluator": ("rollout", 0), "trainer": ("trainer", 0),
    }  # fmt: skip
    assert all(-1 < r["silent_s"] < 60 and not r["lapsed"] for r in rows.values())  # type: ignore[operator]
    postgres.advance(bench, 2000)
    assert {w for w, r in ((r["worker"], r) for r in view(bench, "v_workers")) if r["lapsed"]} == {"busy", "trainer"}


def test_v_grader_disagreement__only_where_verdicts_differ(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    a, b = bench.open(2)
    bench.finish(a)
    bench.finish(b)
    bench.store.regrade(a.trajectory, Reward(1.0, True, grader="same"))
    assert view(bench, "v_grader_disagreement") == []
    bench.store.regrade(b.trajectory, Reward(0.25, False, grader="other", grader_version="2"))
    bench.commit(bench.claim().items)
    (row,) = view(bench, "v_grader_disagreement")
    assert (row["trajectory"], row["verdicts"], row["first_reward"], row["newest_reward"]) == (b.trajectory, 2, 1.0, 0.25)
    assert (row["lowest"], row["highest"], row["newest_success"], row["step"]) == (0.25, 1.0, False, 1)
    assert "other 2" in str(row["graders"])


def test_nan__reaches_no_average(postgres: PostgresWorld) -> None:
    """Timings are the numbers that may be NaN in a row; no saved query shows one."""
    bench = postgres.bench(lag_bound=1)
    for episode in bench.open():
        timings = Timings(math.nan, math.inf, math.nan)
        bench.store.write_segment(
            episode, segment(0, timings=timings, tool_results=(ToolResult("t", "", duration_s=math.nan),))
        )
        bench.store.complete(episode, graded(1))
    bench.commit(bench.claim().items)
    for name, query in saved_queries().items():
        if "run" in query.parameters:
            for row in postgres.store.query(name, run=bench.spec.name).rows:
                assert all(math.isfinite(v) for v in row if isinstance(v, float)), name
    ((mean, n),) = postgres.store.rows(
        "select avg(agentrl.finite(x)), count(*) from unnest('{1, 3, nan, infinity, -infinity}'::float8[]) x"
    )
    assert (mean, n) == (2.0, 5)


def test_evaluation_without_a_verdict__has_no_mean(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    evaluation = bench.store.request_evaluation(bench.run, version=bench.version, step=0, split="heldout", n=1)
    bench.store.open_evaluation_episodes(evaluation.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE)
    (row,) = postgres.store.query("evaluations", run=bench.spec.name).records()
    assert (row["graded"], row["mean_reward"], row["success"]) == (0, None, None)


def test_mask__decodes_and_stands_for_all_when_absent(postgres: PostgresWorld) -> None:
    assert postgres.store.row("select agentrl.mask(null, 3), agentrl.mask('\\x000101', 3), agentrl.mask('', 0)") == (
        [1, 1, 1], [0, 1, 1], [],
    )  # fmt: skip


def test_a_condition_on_the_run__reaches_its_partitions_only(postgres: PostgresWorld) -> None:
    bench, other = postgres.bench(), postgres.bench()
    bench.train(1)
    for name in VIEWS:
        for condition in ("run = (select agentrl.find_run_v1(%s))", "run = agentrl.find_run_v1(%s)"):
            with postgres.store.transaction() as connection:
                found = connection.execute(
                    f"explain (analyze, timing off, format text) select * from agentrl.{name} where {condition}".encode(),
                    (bench.spec.name,),
                ).fetchall()
            touched = "\n".join(line for (line,) in found if "never executed" not in line)
            assert f"_r{other.run}_v" not in touched, (name, condition, touched)


def test_weight_loads__beside_the_time_between_updates(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    assert bench.store.query("weight_loads", run=bench.spec.name).rows == []
    bench.train(3)
    for version, seconds in ((0, 2.0), (1, 4.0), (3, 6.0)):
        bench.store.record_engine_load(bench.run, EngineLoad("W0", version, phases={"read": seconds}))
    bench.store.record_engine_load(bench.run, EngineLoad("W0", 3, phases={"read": 50.0}, error="damaged"))
    bench.store.record_engine_load(bench.run, EngineLoad("E0", 3, phases={"read": 70.0}, pinned=True))
    with postgres.store.transaction() as connection:
        connection.execute(
            "update agentrl.step set at = timestamptz 'epoch' + step * interval '20 s' where run = %s", (bench.run,)
        )
    (row,) = bench.store.query("weight_loads", run=bench.spec.name).records()
    assert (row["loads"], row["load_s"], row["slowest_s"], row["update_s"]) == (3, 4.0, 6.0, 20.0)
    assert row["share"] == pytest.approx(0.2)
