"""A run is watched until its last evaluation was scored, and a stop gives each process its time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from children import start

from agentrl.errors import NotReadyError
from agentrl.launch import run as launch
from agentrl.launch.processes import RunProcesses

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


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0.02)


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


def stopping(at: Path, end: str) -> list[str]:
    """A trainer that, told to stop, does ``end``; the file ``at`` says that it can be told."""
    return python(
        f"import signal; asked = []; signal.signal(15, lambda *_: asked.append(1)); open({str(at)!r}, 'w').close()\n"
        f"while not asked: time.sleep(0.01)\n{end}"
    )


def started(at: Path) -> None:
    for _ in range(1000):
        if at.exists():
            return
        time.sleep(0.01)
    raise AssertionError("the child did not start")


def test_patient_stop__a_long_step_is_waited_for_and_told(
    processes: RunProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "STOP_S", 0.2)
    monkeypatch.setattr(launch, "TELL_S", 0.3)
    start(processes, trainer=stopping(tmp_path / "up", "time.sleep(1); sys.exit(130)"))
    started(tmp_path / "up")
    stop = launch._Stop()
    stop.count = 1
    launch._stop_all(processes, stop)
    assert processes.children[0].code == 130
    assert "waiting for the trainer to finish its step" in capsys.readouterr().out


def test_patient_stop__a_second_interrupt_kills(processes: RunProcesses, tmp_path: Path) -> None:
    start(processes, trainer=stopping(tmp_path / "up", "time.sleep(60)"))
    started(tmp_path / "up")
    stop = launch._Stop()
    stop.count = 2  # the second one came before the launcher had seen the first
    launch._stop_all(processes, stop)
    assert processes.children[0].code == -signal.SIGKILL


def test_patient_stop__workers_have_their_time_after_the_trainer(
    processes: RunProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_S", 0.3)
    start(
        processes,
        trainer=stopping(tmp_path / "trainer", "sys.exit(130)"),
        rollout=stopping(tmp_path / "rollout", "time.sleep(60)"),
    )
    started(tmp_path / "trainer")
    started(tmp_path / "rollout")
    launch._stop_all(processes, launch._Stop())
    assert [child.code for child in processes.children] == [130, -signal.SIGKILL]


@pytest.fixture
def hang_up() -> Iterator[None]:
    """The signal as it is outside of ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_closed_terminal__asks_and_never_insists(hang_up: None) -> None:
    with launch._interrupts() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.count == 1
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.count == 2


def test_closed_terminal__of_nohup_is_none() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launch._interrupts() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)
