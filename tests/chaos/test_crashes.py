"""Processes are killed in mid-run: nothing is lost, nothing is trained twice, nothing is left behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.command_line import CommandLine, Running

SHORT = [
    "trainer.steps=6",
    "evaluation.episodes=32",
    "evaluation.every=0",
    "trainer.checkpoint_every=3",
    "rollout.lease_s=6",
    "trainer.lease_s=6",
]


def start(command_line: CommandLine, name: str, *settings: str) -> Running:
    chosen = dict(setting.split("=", 1) for setting in (*SHORT, *settings))
    given = [f"{key}={value}" for key, value in chosen.items()]
    return command_line.start("train", "--env", "code_agent", "--name", name, "--seed", "11", *given)


def conservation(command_line: CommandLine, name: str) -> dict:
    return json.loads(command_line.run("db", "query", "conservation", "--run", name, "--json"))


def assert_trained_once(command_line: CommandLine, name: str) -> None:
    row = conservation(command_line, name)
    assert row["holds"] is True
    assert row["consumed"] == 6 * 64


def assert_nothing_left(command_line: CommandLine, name: str) -> None:
    deadline = time.monotonic() + 10
    while command_line.processes(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert command_line.processes(name) == []


@pytest.mark.parametrize("role", ["rollout --worker 0", "trainer"])
def test_kill_9__the_run_finishes_and_conserves(role: str, learned: str, command_line: CommandLine) -> None:
    name = "killed-" + role.split()[0]
    running = start(command_line, name)
    running.wait_for(r" +4/6")
    victims = [p for p in command_line.processes(name) if f"agentrl.cli.main {role} " in " ".join(p.cmdline())]
    assert len(victims) == 1
    victims[0].send_signal(signal.SIGKILL)
    assert running.wait() == 0, running.output + command_line.errors()
    assert running.output.count("starting it again") == 1, f"somebody else fell over it:\n{running.output}"
    assert "conservation OK" in running.output
    assert_trained_once(command_line, name)
    assert_nothing_left(command_line, name)


def test_partial_episodes__are_continued_by_the_next_worker(learned: str, command_line: CommandLine) -> None:
    running = start(command_line, "partial", "rollout.resume_partial=true", "trainer.steps=4", "rollout.lease_s=60")
    running.wait_for(r" +1/4")
    _eventually(lambda: _stopped_in_mid_episode(command_line, "partial"))
    assert running.wait() == 0, running.output + command_line.errors()
    assert conservation(command_line, "partial")["holds"] is True
    continued = (
        "select count(distinct e.trajectory) from agentrl.event e join agentrl.run r on r.id = e.run"
        " join agentrl.consumed c on c.run = e.run and c.trajectory = e.trajectory"
        " where r.name = 'partial' and e.why like 'continued after %'"
    )
    assert json.loads(command_line.run("db", "sql", continued, "--json"))["count"] > 0
    output = command_line.run("replay", "check", "partial")
    assert "re-scored" in output


def _stopped_in_mid_episode(command_line: CommandLine, name: str) -> bool:
    """Ends the worker politely while it holds several episodes in their middle; held still meanwhile, so that none ends."""
    (worker,) = [p for p in command_line.processes(name) if "agentrl.cli.main rollout --worker 0 " in " ".join(p.cmdline())]
    worker.suspend()
    try:
        held = (
            "select count(*) from agentrl.live l join agentrl.run r on r.id = l.run"
            f" where r.name = '{name}' and l.purpose = 'train' and l.next_seg between 1 and 3"
        )
        enough = json.loads(command_line.run("db", "sql", held, "--json"))["count"] >= 4
        if enough:
            worker.send_signal(signal.SIGTERM)
    finally:
        worker.resume()
    return enough


def test_interrupt__leaves_nothing_and_resumes(learned: str, command_line: CommandLine) -> None:
    running = start(command_line, "interrupted")
    running.wait_for(r" +3/6")
    running.interrupt()
    assert running.wait() == 130
    assert "agentrl train --resume interrupted" in running.output
    assert "conservation OK" in running.output
    assert_nothing_left(command_line, "interrupted")
    assert conservation(command_line, "interrupted")["live"] == 0
    output = command_line.run("train", "--resume", "interrupted")
    assert "resumed at step" in output
    assert_trained_once(command_line, "interrupted")


def test_launcher_killed__children_end_too(learned: str, command_line: CommandLine) -> None:
    running = start(command_line, "orphaned")
    running.wait_for(r" +3/6")
    running.process.send_signal(signal.SIGKILL)
    running.wait()
    _eventually(lambda: command_line.processes("orphaned") == [])
    assert conservation(command_line, "orphaned")["holds"] is True
    command_line.run("train", "--resume", "orphaned")
    assert_trained_once(command_line, "orphaned")


def test_last_evaluation_interrupted__the_printed_resume_command_finishes_it(learned: str, command_line: CommandLine) -> None:
    many = ["trainer.steps=1", "evaluation.episodes=256", "evaluation.every=0"]
    running = command_line.start("train", "--env", "code_agent", "--name", "scoring", "--seed", "11", *many)
    running.wait_for(r" +1/1 ")
    running.interrupt()
    assert running.wait() == 130
    assert "agentrl train --resume scoring" in running.output
    output = command_line.run("train", "--resume", "scoring")
    assert "held-out success" in output
    assert "finished" in output


def test_database_backend_killed__the_run_goes_on(learned: str, command_line: CommandLine) -> None:
    running = start(command_line, "outage")
    running.wait_for(r" +3/6")
    backends = [p for p in psutil.process_iter() if _is_backend(p, command_line)]
    assert backends
    backends[0].send_signal(signal.SIGKILL)  # the server then closes every connection and recovers
    assert running.wait() == 0, running.output + command_line.errors()
    assert "starting it again" not in running.output
    assert "conservation OK" in running.output
    assert_trained_once(command_line, "outage")


def _is_backend(process: psutil.Process, command_line: CommandLine) -> bool:
    try:
        return process.cwd().startswith(str(command_line.base / "home")) and "agentrl agentrl" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_used_name__is_refused_with_the_resume_command(learned: str, command_line: CommandLine) -> None:
    output = command_line.run("train", "--env", "code_agent", "--name", "learned", code=2)
    assert "agentrl train --resume learned" in output


def _eventually(holds: Callable[[], bool], seconds: float = 45) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
