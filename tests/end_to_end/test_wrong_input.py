"""Wrong input gets one paragraph and its exit code before any work (no_silent_option)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import CommandLine


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env", "code_agnet"], "code_agent"),
        (["--env", "code_agent", "--preset", "sao_trun"], "sao_turn"),
        (["--env", "code_agent", "trainer.stepps=3"], "trainer.steps"),
        (["--env", "code_agent", "--sede", "3"], "--seed"),
        (["--env", "code_agent", "--config", "nothing.toml"], "does not exist"),
        ([], "--env"),
        (["--resume", "nothing"], "no run named 'nothing'"),
        (["--resume", "latest", "--seed", "3"], "leave out --seed"),
        (["--resume", "latest", "--dry-run"], "leave out --dry-run"),
        (["--env", "code_agent", "--sync", "staleness.lag=5"], "given twice"),
        (["--env", "code_agent", "--name", "../evil"], "can't name a run"),
        (["--env", "code_agent", "--name", "latest"], "can't name a run"),
        (["--env", "code_agent", "--name", "x" * 300], "can't name a run"),
        (["--env", "code_agent", "--model", ""], "config.json"),
        (["--env", "code_agent", "environment_options.dat=x.jsonl"], "did you mean 'data'"),
        (["--env", "code_agent", "environment_options.data=x.jsonl"], "x.jsonl does not exist"),
        (["--env", "code_agent", "environment_options=x"], "should be a valid dictionary"),
    ],
)
def test_usage__exit_2_and_the_nearest_name(arguments: list[str], said: str, command_line: CommandLine) -> None:
    output = command_line.run("train", *arguments, code=2)
    assert said in output
    assert "Traceback" not in output


def test_model_directory_without_weights__is_named(command_line: CommandLine) -> None:
    empty = command_line.base / "empty-model"
    empty.mkdir(exist_ok=True)
    output = command_line.run("train", "--env", "code_agent", "--model", str(empty), code=2)
    assert str(empty) in output


def test_database_unreachable__exit_3_and_no_password(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://someone:s3cret-word@127.0.0.1:1/nowhere"
    code = "import sys, os; os.environ['AGENTRL_DATABASE_URL'] = sys.argv.pop(1); from agentrl.cli.main import main; main()"
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code, url, "train", "--env", "code_agent"],
        env=command_line.environment,
        cwd=command_line.base,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "s3cret-word" not in done.stdout + done.stderr
    assert "127.0.0.1" in done.stderr


def test_dry_run__starts_nothing(command_line: CommandLine) -> None:
    output = command_line.run("train", "--env", "code_agent", "--name", "dry", "--dry-run")
    assert "starts no run" in output
    assert not Path(command_line.base / "runs" / "dry").exists()
