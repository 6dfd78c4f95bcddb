"""`agentrl db` as a new user meets it: what a command says when it is asked for something that can't be."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from store_bench import LINEAGE, Bench, PostgresWorld, Server
from typer.testing import CliRunner

from agentrl.cli import doctor
from agentrl.cli.main import app
from agentrl.errors import NotReadyError, UsageError
from agentrl.store.archive_export import export_run
from agentrl.store.postgres import PostgresStore
from agentrl.store.schema_setup import missing_columns

Cli = Callable[..., str]


@pytest.fixture
def cli(postgres: PostgresWorld, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs ``agentrl db ...`` on the world's database."""
    monkeypatch.setenv("AGENTRL_DATABASE_URL", postgres.url)
    return invoke


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["db", *arguments])
    if isinstance(result.exception, SystemExit):
        raise UsageError(result.output)  # of the option parser, which ends with 2
    if result.exception is not None:
        raise result.exception
    return result.output


def test_query_of_one_trajectory__is_asked_with_its_id_or_a_run_for_latest(postgres: PostgresWorld, cli: Cli) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    bench.finish(episode)
    by_run = cli("query", "timeline", "latest", "--run", bench.spec.name, "--csv")
    assert by_run == cli("query", "timeline", str(episode.trajectory), "--csv")
    with pytest.raises(UsageError, match="agentrl db query timeline ID"):
        cli("query", "timeline")
    with pytest.raises(UsageError, match="agentrl db query conservation --run NAME"):
        cli("query", "conservation", "latest")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stats", "--run", "\udcff"), "no run named"),
        (("sql", "select '\udcff'"), "no UTF-8"),
        (("sql", "select '\0'"), "no UTF-8"),
        (("sql", "copy live to stdout"), "gives no rows"),
        (("sql", "select 1/0"), "division by zero"),
        (("sql", "select 1", "--limit", "9" * 20), "--limit"),
        (("query", "stuck", "--timeout", "1e300"), "--timeout"),
        (("retain", "--run", "latest", "--keep-versions", "9" * 20), "--keep-versions"),
        (("vacuum", "--older-than", "999999w"), "1000 years"),
        (("reuse", "--from", "a", "--into", "b", "--first-step", "9" * 20), "--first-step"),
        (("reuse", "--from", "a", "--into", "b", "--min-reward", "nan"), "finite"),
        (("show", "01a22cd0-fb4a-79b9-b23b-6d10c225335b"), "agentrl show latest --run NAME"),
    ],
)
def test_what_cannot_be__one_paragraph_and_no_traceback(
    postgres: PostgresWorld, cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError) as error:
        cli(*arguments)
    assert said in str(error.value)


def test_tensorboard__has_each_step_and_score_of_the_live_history_once(
    postgres: PostgresWorld, cli: Cli, tmp_path: Path
) -> None:
    bench = postgres.bench(lag_bound=9)
    bench.train(2)
    kept = bench.checkpoint()
    bench.train(1)
    evaluation = bench.store.request_evaluation(bench.run, version=bench.version, step=3, split="heldout", n=1)
    (episode,) = bench.store.open_evaluation_episodes(
        evaluation.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE
    ).episodes
    bench.finish(episode)
    assert bench.store.pending_evaluation(bench.run) is None
    for steps in (3, 2):
        result = CliRunner().invoke(app, ["tensorboard", str(tmp_path), "--run", bench.spec.name])
        assert result.exit_code == 0, result.output
        assert f"wrote {steps} steps of run {bench.spec.name}" in result.output
        (file,) = (tmp_path / bench.spec.name).iterdir()
        assert file.read_bytes().count(b"other/loss") == steps
        assert file.read_bytes().count(b"1_quality/heldout_success") == 1
        postgres.take_over(bench, kept)
    with pytest.raises(UsageError, match="no run named 'nobody'"):
        raise CliRunner().invoke(app, ["tensorboard", str(tmp_path), "--run", "nobody"]).exception


@pytest.mark.parametrize("command", [("status",), ("migrate", "--dry-run"), ("migrate",), ("stats",), ("queries",)])
def test_no_server__said_with_the_next_step(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("AGENTRL_DATABASE_URL", "postgresql://somebody:s3cret@127.0.0.1:1/nowhere")
    if command == ("queries",):
        assert "conservation" in invoke(*command)
        return
    with pytest.raises(NotReadyError, match="No database server answers at postgresql://somebody:\\*\\*\\*@") as error:
        invoke(*command)
    assert "s3cret" not in str(error.value)


def test_migration_by_a_user_who_does_not_own_the_schema__named(embedded_server: Server) -> None:
    url = embedded_server.database()
    PostgresStore(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop role if exists passer_by")
        connection.execute("create role passer_by login")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_DATABASE_URL", url.replace("//agentrl@", "//passer_by@"))
        for command in ("status", "migrate"):
            with pytest.raises(UsageError, match="migrations need the owner of the schema"):
                invoke(command)


def test_schema_of_another_state_of_the_code__says_what_to_do(
    embedded_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = embedded_server.database()
    store = PostgresStore(url)
    bench = Bench(store)
    with store.session() as connection:
        assert missing_columns(connection) == []
        connection.execute("alter table agentrl.run drop column oversample")
        assert missing_columns(connection) == ["run.oversample"]
    export_run(store, bench.run, tmp_path / "saved", "jsonl", False)  # as the code that made it would
    way_out = "`agentrl db import FOLDER` reads them into the new one"
    with pytest.raises(NotReadyError, match=way_out) as error:
        store.find_run(bench.spec.name)
    assert "oversample does not exist" in str(error.value)
    store.close()
    monkeypatch.setenv("AGENTRL_DATABASE_URL", url)
    assert "lacks     run.oversample" in invoke("status")
    with pytest.raises(NotReadyError, match=way_out):
        invoke("migrate")
    with pytest.raises(NotReadyError, match=r"it lacks run\.oversample"):
        doctor._store()
    with pytest.raises(UsageError, match=r"docs/reference/schema\.md"):
        invoke("sql", "select oversample from run")  # of the user's own statement, not of the schema
    monkeypatch.setenv("AGENTRL_DATABASE_URL", embedded_server.database())
    assert bench.spec.name in invoke("import", str(tmp_path / "saved"))
