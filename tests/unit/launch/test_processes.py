"""Processes of a run: restarted, given up, stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import start

from agentrl.errors import EnvironmentFault, NotReadyError, RunFailed
from agentrl.launch.processes import EXIT_FENCED, MAX_RESTARTS, Child, RunProcesses

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def ends_with(code: int) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.exit({code})"]


def watch_until(processes: RunProcesses, step: int = 0) -> bool:
    for _ in range(400):
        if processes.watch(step):
            return True
        time.sleep(0.02)
    raise AssertionError("nothing happened")


def test_reward_workers__are_children_that_a_last_evaluation_needs_too(
    processes: RunProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[Child] = []
    monkeypatch.setattr(RunProcesses, "_spawn", lambda self, child: spawned.append(child))
    processes.reward_workers = 2
    processes.start(trains=False)
    assert [(child.role, child.evaluates) for child in spawned] == [
        ("evaluation", True),
        ("reward-0", True),
        ("reward-1", True),
    ]
    assert spawned[-1].command[-4:] == ["--worker", "1", "--run", "r"]
    spawned.clear()
    processes.start()
    assert [child.role for child in spawned] == ["trainer", "rollout-0", "evaluation", "reward-0", "reward-1"]


def test_trainer_done__ends_the_watch(processes: RunProcesses) -> None:
    start(processes, trainer=ends_with(0), rollout=SLEEP)
    assert watch_until(processes)


def test_only_evaluation_left__is_watched_until_it_is_done(processes: RunProcesses) -> None:
    start(processes, evaluation=SLEEP)
    assert processes.watch(5)
    worker = processes.children[0].process
    assert worker is not None
    worker.kill()
    worker.wait()
    assert processes.watch(5)
    assert processes.children[0].code is None


def test_last_words__are_in_the_error(processes: RunProcesses) -> None:
    says = [sys.executable, "-c", "import sys; print('agentrl: the reward raised', file=sys.stderr); sys.exit(2)"]
    start(processes, trainer=says)
    with pytest.raises(EnvironmentFault, match="the reward raised") as raised:
        watch_until(processes)
    assert raised.value.exit_code == 2


def test_restart__a_dead_worker_is_started_again(processes: RunProcesses) -> None:
    start(processes, trainer=SLEEP, rollout=SLEEP)
    worker = processes.children[1]
    assert worker.process is not None
    first = worker.process.pid
    worker.process.kill()
    worker.process.wait()
    processes.watch(0)
    assert worker.process.pid != first
    assert worker.code is None


def test_restart__gives_up_without_progress_and_names_the_log(processes: RunProcesses) -> None:
    start(processes, trainer=ends_with(1), rollout=SLEEP)
    with pytest.raises(RunFailed, match=r"trainer.jsonl"):
        watch_until(processes)
    assert processes.children[0].deaths == MAX_RESTARTS + 1


def test_restart__progress_forgives_deaths(processes: RunProcesses) -> None:
    start(processes, trainer=SLEEP, rollout=SLEEP)
    processes.children[1].deaths = MAX_RESTARTS
    processes.watch(1)
    assert processes.children[1].deaths == 0


def test_fenced_stays_out(processes: RunProcesses) -> None:
    start(processes, trainer=ends_with(EXIT_FENCED), rollout=SLEEP)
    with pytest.raises(RunFailed, match="holds run"):
        watch_until(processes)
    assert processes.children[0].deaths == 0


def test_bad_environment__is_not_retried(processes: RunProcesses) -> None:
    start(processes, trainer=SLEEP, rollout=ends_with(3))
    with pytest.raises(NotReadyError, match="code 3") as raised:
        watch_until(processes)
    assert raised.value.exit_code == 3


def test_two_signals__the_first_asks_the_second_kills(processes: RunProcesses) -> None:
    stubborn = [
        sys.executable,
        "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)",
    ]
    start(processes, trainer=stubborn)
    time.sleep(1)
    processes.stop()
    assert not processes.wait(0.5)
    processes.kill()
    assert processes.wait(10)


def test_servers_last__a_server_ends_after_those_that_use_it(processes: RunProcesses, tmp_path: Path) -> None:
    lasts = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: None); time.sleep(1)"
    start(processes, rollout=[sys.executable, "-c", lasts])
    server = Child(
        "sglang-0", [sys.executable, "-c", "print('listening', flush=True); import time; time.sleep(60)"], prints=True
    )
    processes.children.insert(0, server)
    processes._spawn(server)
    time.sleep(0.3)
    processes.stop()
    assert not processes.wait(0.1)
    assert server.code is None
    assert processes.wait(10)
    assert server.code is not None
    assert (tmp_path / "logs" / "sglang-0.stderr").read_text() == "listening\n"


@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_no_orphans__who_started_it_is_killed(rank: str | None) -> None:
    """One of several ranks may heed no SIGTERM, or wait for the others until it times out: it dies all the same."""
    heeds = "" if rank is None else "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = (
        "import signal, time; from agentrl.cli.workers import follow_parent; follow_parent(); "
        f"{heeds}print('up', flush=True); time.sleep(10); print('survived', flush=True)"
    )
    parent = (
        "import os, subprocess, sys, time; "
        "own = os.environ | {'AGENTRL_PARENT': str(os.getpid())}; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env=own); time.sleep(60)"
    )
    environment = os.environ | ({} if rank is None else {"RANK": rank})
    launcher = subprocess.Popen([sys.executable, "-c", parent], env=environment, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    with launcher.stdout:
        assert launcher.stdout.readline() == "up\n"
        launcher.kill()
        launcher.wait()
        assert launcher.stdout.read() == "", "the child is the last to hold the other end"
