"""Vacuum: what retention left of trajectories that are long gone is forgotten; what exists, scores and the books stay."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from store_bench import FAILED, LINEAGE, Bench, PostgresWorld, graded, segment
from test_store_sub_agents import child
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import UsageError
from agentrl.store.loads import EngineLoad
from agentrl.store.retention import removed_by_retention, retain
from agentrl.store.vacuum import vacuum
from agentrl.types import Place, Reward

MONTH = timedelta(days=30)
TABLES = ("event", "reward", "grp", "engine_version", "consumed", "dropped", "evaluated", "step")


def retired(postgres: PostgresWorld, days: int, **spec: object) -> Bench:
    """A run whose first bucket, with a trained step, a failure and an evaluation, was removed so many days ago."""
    bench = postgres.bench(**({"lag_bound": 0} | spec))
    evaluation = postgres.store.request_evaluation(bench.run, version=0, step=0, split="heldout", n=1)
    opened = postgres.store.open_evaluation_episodes(evaluation.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE)
    for episode in opened.episodes:
        postgres.store.write_segment(episode, segment(0, 0))
        postgres.store.complete(episode, graded(1))
    first, *_ = bench.open(1)
    postgres.store.complete(first, FAILED)
    bench.train(1)
    for version in (0, 1):
        postgres.store.record_engine_load(bench.run, EngineLoad("engine", version))
    while bench.version < 64:
        bench.publish()
    bench.train(1)
    bench.checkpoint()
    assert len(retain(postgres.store, bench.run, 1).removed) == 1
    with postgres.store.transaction() as connection:
        for table, column in (("retired", "at"), ("grp", "created_at"), ("engine_version", "loaded_at")):
            connection.execute(
                f"update agentrl.{table} set {column} = {column} - %s where run = %s".encode(), (timedelta(days), bench.run)
            )
    return bench


def rows(bench: Bench) -> dict[str, int]:
    return {table: bench.store.row(f"select count(*) from agentrl.{table} where run = %s", (bench.run,))[0] for table in TABLES}


def test_vacuum__forgets_moves_and_verdicts_of_what_is_gone(postgres: PostgresWorld) -> None:
    bench = retired(postgres, 31)
    books, before = postgres.store.conservation(bench.run), rows(bench)
    (score,) = postgres.store.evaluation_results(bench.run)
    (gone,) = postgres.store.row("select trajectory from agentrl.consumed where run = %s order by step limit 1", (bench.run,))
    done = vacuum(postgres.store, bench.run, MONTH)
    after = rows(bench)
    # The failed episode has two moves, the trained two six each, the evaluated three; the newest step's two stay.
    assert (done.moves, done.verdicts, done.loads) == (2 + 12 + 3, 2, 1)
    assert (after["event"], after["reward"], after["engine_version"]) == (12, 3, 1)
    assert {t: after[t] for t in TABLES[4:]} == {t: before[t] for t in TABLES[4:]}
    assert postgres.store.conservation(bench.run) == books
    assert books.holds
    assert postgres.store.evaluation_results(bench.run) == [score]
    assert "removed by retention" in (removed_by_retention(postgres.store, gone) or "")
    assert vacuum(postgres.store, bench.run, MONTH).total == 0
    bench.train(1)
    bench.check()


def test_vacuum__leaves_what_went_lately_and_what_exists(postgres: PostgresWorld) -> None:
    bench = retired(postgres, 29)
    before = rows(bench)
    assert vacuum(postgres.store, bench.run, MONTH).total == 0
    assert rows(bench) == before
    young = postgres.bench(lag_bound=0)
    young.train(2)
    assert vacuum(postgres.store, young.run, timedelta()).total == 0


def test_vacuum_dry__says_the_same_and_changes_nothing(postgres: PostgresWorld) -> None:
    bench = retired(postgres, 31)
    before = rows(bench)
    planned = vacuum(postgres.store, bench.run, MONTH, dry_run=True)
    assert rows(bench) == before
    assert vacuum(postgres.store, bench.run, MONTH) == planned
    assert planned.total > 0


def test_vacuum_of_groups__ended_ones_without_a_trajectory(postgres: PostgresWorld) -> None:
    bench = retired(postgres, 31, group_size=2)
    bench.open(1)
    assert vacuum(postgres.store, bench.run, MONTH).groups == 1
    assert rows(bench)["grp"] == 2
    assert bench.place(Place.LIVE) == 1


@pytest.fixture
def cli(postgres: PostgresWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs ``agentrl db ...`` on the world's database."""
    monkeypatch.setenv("AGENTRL_DATABASE_URL", postgres.url)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["db", *arguments])
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


def test_commands__vacuum_and_retain_as_json(postgres: PostgresWorld, cli: Callable[..., str]) -> None:
    bench = retired(postgres, 31)
    name = bench.spec.name
    command = ("vacuum", "--older-than", "4w", "--run", name)
    assert cli(*command, "--dry-run").startswith(f"would delete of run {name}: 17 moves, 2 verdicts, 0 groups, 1 loads")
    assert json.loads(cli(*command, "--json")) == {
        "run": name, "dry_run": False, "moves": 17, "verdicts": 2, "groups": 0, "loads": 1,
    }  # fmt: skip
    assert "nothing that retention removed is that old" in cli("vacuum", "--older-than", "9999w")
    assert f"run {name}" not in cli("vacuum", "--older-than", "4w")
    kept = json.loads(cli("retain", "--run", name, "--keep-versions", "1", "--json", "--dry-run"))
    assert kept == {"run": name, "dry_run": True, "removed": [], "kept": [], "requests": 0}


@pytest.mark.parametrize("age", ["", "30", "d", "1.5d", "30 days", "-1d", "30y"])
def test_age__refused_with_an_example(cli: Callable[..., str], age: str) -> None:
    with pytest.raises(UsageError, match="for example 12h or 30d"):
        cli("vacuum", "--older-than", age)


def test_command__reuse(postgres: PostgresWorld, cli: Callable[..., str]) -> None:
    source = postgres.bench(lag_bound=0)
    source.train(2)
    (bad, good) = source.open(2)
    source.finish(bad, value=0.0)
    source.finish(good)
    other = postgres.bench(n_tasks=0, lag_bound=None)
    names = ("--from", source.spec.name, "--into", other.spec.name)
    assert "2 trajectories (2 items)" in cli("reuse", *names, "--first-step", "2", "--last-step", "2")
    assert "1 trajectories (1 items)" in cli("reuse", *names, "--no-success")
    taken = json.loads(cli("reuse", *names, "--min-reward", "0.5", "--limit", "1", "--json"))
    assert (taken["from"], taken["into"], taken["items"]) == (source.spec.name, other.spec.name, 1)
    assert "2 trajectories" in cli("reuse", *names, "--success")
    assert "nothing there fits, or all of it was taken before" in cli("reuse", *names)
    assert other.place(Place.READY) == 6
    other.check()
    with pytest.raises(UsageError, match="unbounded run"):
        cli("reuse", "--from", other.spec.name, "--into", source.spec.name)
    with pytest.raises(UsageError, match="exchange the two"):
        cli("reuse", *names, "--first-step", "3", "--last-step", "2")
    with pytest.raises(UsageError, match="no run named"):
        cli("reuse", "--from", "nothing", "--into", other.spec.name)


def test_vacuum__forgets_verdicts_of_sub_agents_that_are_gone(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0, batch_min=1, batch_max=1)
    for _ in range(2):
        (episode,) = bench.open(1)
        own = child(episode, graded=True, reward=Reward(0.5), segments=(segment(0, bench.version),))
        postgres.store.write_segment(episode, segment(0, bench.version), [own])
        postgres.store.complete(episode, graded(1))
        bench.commit(bench.claim().items)
        while bench.version < 64:
            bench.publish()
    bench.checkpoint()
    assert len(retain(postgres.store, bench.run, 1).removed) == 1
    bench.check()
    assert rows(bench)["reward"] == 4
    for table in ("retired", "reward"):
        postgres.store.rows(f"update agentrl.{table} set at = at - interval '31 days' where run = %s returning 1", (bench.run,))
    assert vacuum(postgres.store, bench.run, MONTH).verdicts == 2
    assert rows(bench)["reward"] == 2
    assert vacuum(postgres.store, bench.run, MONTH).total == 0
