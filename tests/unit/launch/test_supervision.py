"""A run is watched until its last evaluation was scored."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.errors import NotReadyError
from agentrl.launch import run as launch
from agentrl.launch.processes import Child, RunProcesses

RUN: Any = SimpleNamespace(id=1, spec=SimpleNamespace(name="r"))


class Store:
    """A run at its target; ``scored`` says when its last evaluation is over."""

    def __init__(self, scored: Any) -> None:
        self.scored = scored

    def find_run(self, name: str) -> Any:
        return SimpleNamespace(step=5)

    def query(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(records=list)

    def pending_evaluation(self, run: int) -> Any:
        return None if self.scored() else SimpleNamespace(version=3, done=1, n=2)


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "POLL_S", 0.02)
    (tmp_path / "logs").mkdir()
    made = RunProcesses("r", tmp_path, 1)
    yield made
    made.kill()
    made.wait(10)


def start(processes: RunProcesses, **commands: list[str]) -> None:
    processes.children = [Child(role, command) for role, command in commands.items()]
    for child in processes.children:
        processes._spawn(child)


def python(body: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time; {body}"]


def supervise(processes: RunProcesses, scored: Any) -> str:
    store: Any = Store(scored)
    return launch._supervise(RUN, processes, store, launch._Stop())


def test_final_evaluation__a_worker_that_can_not_go_on_ends_the_run(processes: RunProcesses) -> None:
    start(processes, trainer=["true"], evaluation=python("time.sleep(0.3); sys.exit(3)"))
    looks = iter(range(500))
    with pytest.raises(NotReadyError, match="code 3"):
        supervise(processes, lambda: next(looks, None) is None)


def test_final_evaluation__a_killed_worker_is_started_again(processes: RunProcesses) -> None:
    start(processes, trainer=["true"], evaluation=python("time.sleep(60)"))
    worker = processes.children[1]
    assert worker.process is not None
    first = worker.process.pid

    def scored() -> bool:
        """Asked once the training is over: the worker dies then."""
        assert worker.process is not None
        if worker.process.pid == first and worker.code is None:
            os.kill(first, signal.SIGKILL)
            worker.process.wait()
        return worker.process.pid != first or next(looks, None) is None

    looks = iter(range(500))
    assert supervise(processes, scored) == "finished"
    assert worker.process.pid != first
