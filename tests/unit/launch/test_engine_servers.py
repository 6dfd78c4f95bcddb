"""The SGLang servers of a run: which are started, how, and what is refused before."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.errors import NotReadyError, UsageError
from agentrl.launch import engine_servers as module
from agentrl.launch.engine_servers import engine_line, engine_servers
from agentrl.weights.broadcast import free_port


def config(*overrides: str) -> RunConfig:
    return resolve(environment="code_agent", preset=None, file=None, flags={}, overrides=overrides).config


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Something that is there, like an interpreter."""
    path = tmp_path / "python"
    path.touch()
    return path


def test_local_and_attached__nothing_is_started(tmp_path: Path) -> None:
    assert engine_servers(config(), tmp_path) == []
    attached = config("engine.kind=sglang", "engine.urls=['http://a:1', 'http://b:1/']")
    assert engine_servers(attached, tmp_path) == []
    assert "http://a:1, http://b:1/, running ones" in engine_line(attached)


def test_started__one_process_a_server_and_one_for_evaluations(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    port = free_port("127.0.0.1")
    settings = (
        f"engine.port={port}",
        "engine.servers=2",
        "engine.evaluation=sglang",
        "engine.sglang_args=['--dtype', 'bfloat16']",
    )
    run = config("engine.kind=sglang", f"engine.sglang_python={python}", "engine.slots=4", *settings)
    children = engine_servers(run, tmp_path)
    assert [child.role for child in children] == ["sglang-0", "sglang-1", "sglang-evaluation"]
    assert [child.evaluates for child in children] == [False, False, True]
    command = list(children[1].command)
    assert command[0] == str(python)
    options = dict(pairwise(command))
    assert options["--port"] == str(port + 1)
    assert options["--model-path"] == str(tmp_path / "model")
    assert options["--device"] == "cpu"
    assert options["--max-total-tokens"] == str(4 * (run.model.max_context + 8))
    assert command[-2:] == ["--dtype", "bfloat16"]
    assert run.engine.server_urls == (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}")
    assert run.engine.evaluation_server_urls == (f"http://127.0.0.1:{port + 2}",)


def test_with_a_gpu__nothing_of_the_cpu_is_asked_for(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: True)
    run = config("engine.kind=sglang", f"engine.sglang_python={python}", f"engine.port={free_port('127.0.0.1')}")
    (child,) = engine_servers(run, tmp_path)
    assert "--device" not in child.command
    assert "--mem-fraction-static" not in child.command


def test_no_sglang__says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"scripts/install-sglang\.sh"):
        engine_servers(config("engine.kind=sglang", f"engine.sglang_python={tmp_path / 'none'}"), tmp_path)


def test_port_taken__refused_with_the_way_out(tmp_path: Path, python: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = config("engine.kind=sglang", f"engine.sglang_python={python}", f"engine.port={taken.getsockname()[1]}")
        with pytest.raises(NotReadyError, match=r"engine\.port=N"):
            engine_servers(run, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.servers=2"], "engine.servers needs engine.kind=sglang"),
        (["engine.kind=sglang", "engine.urls=['http://a']", "engine.port=4000"], "leave out engine.port"),
        (["engine.kind=sglang", "engine.urls=['http://a']", "engine.evaluation=sglang"], "needs engine.evaluation_urls"),
        (["engine.kind=sglang", "engine.evaluation_urls=['http://a']"], "needs engine.evaluation=sglang and engine.urls"),
        (
            [
                "engine.kind=sglang",
                "engine.urls=['http://a']",
                "engine.evaluation=sglang",
                "engine.evaluation_urls=['http://a']",
            ],
            "evaluations keep one version",
        ),
    ],
)
def test_no_silent_option__settings_that_nobody_would_read_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(*overrides)
