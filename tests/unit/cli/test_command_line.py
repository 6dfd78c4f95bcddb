"""What every command does alike: one paragraph for an error, JSON for programs, nothing that only a terminal understands."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli import doctor
from agentrl.cli.main import main
from agentrl.errors import NotReadyError

Ran = tuple[int, str, str]
Run = Callable[..., Ran]


@pytest.fixture
def agentrl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("AGENTRL_VERBOSE", "")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["agentrl", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["db", "query", "conservaton"], "did you mean 'conservation'"),
        (["db", "query", "timeline"], "agentrl db query timeline ID, or latest for the newest"),
        (["db", "query", "conservation", "latest"], "For one run: agentrl db query conservation --run NAME"),
        (["db", "vacuum", "--older-than", "soon"], "12h or 30d"),
        (["gateway", "--port", "70000"], "65535"),
        (["sandbox", "build", "./nosuch"], "there is no nosuch/Dockerfile; shipped: base.\n"),
        (["tarin"], "Did you mean 'train'"),
    ],
)
def test_wrong_usage__one_paragraph_and_code_2(arguments: list[str], told: str, agentrl: Run) -> None:
    code, out, err = agentrl(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_defect__one_line_with_its_place_and_a_traceback_only_on_demand(agentrl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        try:
            raise ValueError("boom")
        except ValueError as error:
            raise ExceptionGroup("tasks", [error]) from None

    monkeypatch.setattr("agentrl.store.saved_queries.saved_queries", broken)
    code, _, err = agentrl("db", "queries")
    assert code == 1
    assert err.startswith(f"agentrl: ValueError: boom ({__file__}:")
    assert "Traceback" not in err
    code, _, err = agentrl("-v", "db", "queries")
    assert "Traceback" in err
    assert err.strip().splitlines()[-1].startswith("agentrl: ValueError: boom"), "the last words of a process name the cause"


def test_doctor__goes_on_where_a_package_is_missing(agentrl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setattr(doctor, "_store", lambda: importlib.import_module("no_such_driver"))
    monkeypatch.setattr(doctor, "_sandbox", lambda: "bubblewrap")
    code, out, _ = agentrl("doctor", "--json")
    found = {check["check"]: check for check in map(json.loads, out.splitlines())}
    assert code == 3
    assert {name: check["status"] for name, check in found.items() if name != "disk"} == {
        "packages": "FAIL", "store": "FAIL", "sandbox": "OK", "environments": "OK"
    }  # fmt: skip
    assert "missing no-such-package: pip install" in found["packages"]["detail"]
    assert "no_such_driver can't be imported" in found["store"]["detail"]


def test_doctor__full_disk_is_a_warning_and_no_place_a_failure(agentrl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.launch.disk.LITTLE_GB", 1e9)
    assert isinstance(doctor._disk(), doctor.Warned)
    monkeypatch.setenv("AGENTRL_RUNS", "/dev/null/runs")
    with pytest.raises(NotReadyError, match="/dev/null is no folder"):
        doctor._disk()


def test_reading_commands__have_json(agentrl: Run, tmp_path: Path) -> None:
    settings = json.loads(agentrl("config", "show", "trainer.steps=7", "--json")[1])
    assert settings["trainer.steps"] == {"value": 7, "origin": "flag"}
    assert settings["rollout.concurrency"]["origin"] == "default"
    file = tmp_path / "run.toml"
    file.write_text("environment = 'qa_verify'\n")
    settings = json.loads(agentrl("config", "show", "--config", str(file), "--json")[1])
    assert settings["environment"] == {"value": "qa_verify", "origin": f"file {file}"}
    assert json.loads(agentrl("config", "presets", "--json")[1])["sao"]["settings"]["algorithm.loss"] == "dis"
    queries = [json.loads(line) for line in agentrl("db", "queries", "--json")[1].splitlines()]
    assert "conservation" in [query["name"] for query in queries]


def test_output_that_is_no_terminal__has_no_colour(agentrl: Run) -> None:
    for arguments in (["--help"], ["config", "show"], ["db", "queries"], ["train", "--help"]):
        assert "\x1b" not in "".join(agentrl(*arguments)[1:])


def test_completion__offers_commands(agentrl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": "agentrl db qu", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    assert agentrl()[1].split() == ["query", "queries"]


def test_help__names_the_exit_codes(agentrl: Run) -> None:
    text = " ".join(agentrl("--help")[1].split())
    for code in ("0 done", "1 the run or a check failed", "2 wrong usage", "3 something outside", "130 interrupted"):
        assert code in text
