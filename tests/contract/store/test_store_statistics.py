"""How big the store is: exact while small, estimated when not, and what the commands print."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest
from store_bench import PostgresWorld
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import UsageError
from agentrl.store import statistics
from agentrl.store.retention import retain
from agentrl.store.statistics import store_statistics


@pytest.fixture
def cli(postgres: PostgresWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Output of a command of ``agentrl db`` on this server."""
    monkeypatch.setenv("AGENTRL_DATABASE_URL", postgres.url)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["db", *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_statistics__of_a_small_run_are_exact(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(2)
    bench.open(1)
    (one,) = store_statistics(postgres.store, bench.run).runs
    assert (one.run, one.step, one.updates, one.about) == (bench.spec.name, 2, 2, False)
    assert one.trajectories == postgres.store.conservation(bench.run).created
    assert (one.segments, one.tokens) == (4, 28)
    assert one.places["live"] >= 1
    assert (one.hour_trajectories, one.hour_tokens, one.hour_steps) == (one.trajectories, 28, 2)
    assert set(one.bytes) == {"trajectory", "segment", "trained"}
    assert min(one.bytes.values()) > 0


def test_statistics__of_a_big_run_are_estimates(postgres: PostgresWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(3)
    with postgres.store.session() as connection:
        connection.execute(f"analyze agentrl.trajectory_r{bench.run}_v0".encode())
    monkeypatch.setattr(statistics, "EXACT_BYTES", 0)
    (one,) = store_statistics(postgres.store, bench.run).runs
    assert (one.about, one.trajectories, one.segments, one.tokens) == (True, 6, 6, 42)


def test_statistics__count_what_retention_removed_and_name_the_oldest_transaction(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(2)
    while bench.version < 64:
        bench.publish()
    bench.train(1)
    bench.checkpoint()
    (removed,) = retain(postgres.store, bench.run, 1).removed
    with psycopg.connect(postgres.url, application_name="a notebook") as user:
        user.execute("select 1")
        found = store_statistics(postgres.store)
    assert found.oldest_transaction is not None
    assert found.oldest_transaction.application == "a notebook"
    (one,) = [r for r in found.runs if r.run == bench.spec.name]
    assert (one.trajectories, one.retired_trajectories, one.retired_bytes) == (2, 4, removed.bytes)
    assert {"live", "ready", "lease"} <= set(found.dead_rows)
    assert found.shared_bytes["event"] > 0


def test_commands__stats_and_retain(postgres: PostgresWorld, cli: Callable[..., str]) -> None:
    bench = postgres.bench(lag_bound=0)
    bench.train(2)
    name = bench.spec.name
    assert "4 trajectories, 4 segments, 28 tokens" in cli("stats", "--run", name)
    assert json.loads(cli("stats", "--run", name, "--json"))["runs"][0]["tokens"] == 28
    assert "would remove nothing: no 64 versions" in cli("retain", "--run", name, "--keep-versions", "1", "--dry-run")
    while bench.version < 64:
        bench.publish()
    bench.train(1)
    assert "trained after the newest checkpoint" in cli("retain", "--run", name, "--keep-versions", "1")
    bench.checkpoint()
    (old,) = postgres.store.row("select min(id::text) from agentrl.trajectory where run = %s", (bench.run,))
    assert "would remove versions 0 to 63: 4 training" in cli("retain", "--run", name, "--keep-versions", "1", "--dry-run")
    assert "removed versions 0 to 63: 4 training" in cli("retain", "--run", name, "--keep-versions", "1")
    shown = CliRunner().invoke(app, ["show", old])
    assert isinstance(shown.exception, UsageError)
    assert "removed by retention" in str(shown.exception)
    with pytest.raises(UsageError, match="no run named"):
        cli("retain", "--run", "no such run", "--keep-versions", "1")
