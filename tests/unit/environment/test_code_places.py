"""Errors in an author's code carry its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.environment.base import checked_tasks
from agentrl.environment.demonstrate import collect, play
from agentrl.environment.registry import load
from agentrl.errors import EnvironmentFault, UsageError

SOURCE = """
import json
from agentrl.environment import Environment, Message, Task, tool, tool_call

class Faulty(Environment):
    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        if broken == "constructor":
            raise KeyError("k")  # line: constructor

    def fail(self, where):
        if self.broken == where:
            json.loads("{")  # line: below

    def tasks(self, split, seed, n):
        self.fail("tasks")
        return [] if self.broken == "no tasks" else [Task("t", {}, split)]

    def messages(self, task):
        self.fail("messages")
        return [Message("user", "go")]

    @tool(side_effects=False)
    def look(self) -> object:
        \"\"\"Look.\"\"\"
        self.fail("tool")
        return object() if self.broken == "an object" else "seen"

    async def reward(self, episode, sandbox):
        self.fail("reward")
        return float("nan") if self.broken == "nan" else 1.0

    def demonstrator(self, rng, task):
        self.fail("demonstrator")
        def policy(episode):
            self.fail("policy")
            return "done" if episode.n_turns else tool_call("look")
        return policy
"""


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if mark in line)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "faulty.py"
    path.write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return path


PLACES = {
    "tasks": "# line: below",
    "no tasks": "def tasks",
    "messages": "# line: below",
    "tool": "# line: below",
    "an object": "@tool",
    "reward": "# line: below",
    "nan": "def reward",
    "demonstrator": "# line: below",
    "policy": "# line: below",
}


@pytest.mark.parametrize("broken", PLACES)
async def test_fault__carries_file_and_line(broken: str, file: Path) -> None:
    environment = load(f"{file}:Faulty", {"broken": broken})
    said = []
    try:
        await collect(environment, 0, 1)
    except* EnvironmentFault as faults:
        said = [str(fault) for fault in faults.exceptions]
    assert len(said) == 1
    assert f"(faulty.py:{line_of(PLACES[broken])})" in said[0]


async def test_fault__none_in_the_control(file: Path) -> None:
    assert [d.reward.value for d in await collect(load(f"{file}:Faulty"), 0, 1) if d.reward] == [1.0]


def test_constructor__carries_file_and_line(file: Path) -> None:
    with pytest.raises(UsageError, match=rf"KeyError: 'k' \(faulty\.py:{line_of('# line: constructor')}\)"):
        load(f"{file}:Faulty", {"broken": "constructor"})


def test_import__carries_file_and_line(file: Path) -> None:
    file.write_text("import os\n\nos.environ['NOT_THERE_AT_ALL']\n")
    with pytest.raises(UsageError, match=r"\(faulty\.py:3\)"):
        load(f"{file}:Faulty")


def test_file_elsewhere__is_shown_in_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(EnvironmentFault) as raised:
        checked_tasks(load(f"{file}:Faulty", {"broken": "tasks"}), "train", 0, 1)
    assert f"({file.relative_to('/')}:" in str(raised.value)


async def test_method_that_is_missing__has_no_place(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("from agentrl.environment import Environment\nclass Empty(Environment):\n    pass\n")
    with pytest.raises(EnvironmentFault, match=r"must define tasks\(split, seed, n\)$"):
        checked_tasks(load(f"{path}:Empty"), "train", 0, 1)


async def test_time_limit__names_the_method_that_did_not_return(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(
        "import asyncio\nfrom agentrl.environment import Environment, Message, Task\n\n"
        "class Slow(Environment):\n    grade_timeout_s = 0.05\n"
        "    def tasks(self, split, seed, n):\n        return [Task('t', {}, split)]\n"
        "    def messages(self, task):\n        return [Message('user', 'go')]\n"
        "    async def reward(self, episode, sandbox):\n        await asyncio.sleep(9)\n"
    )
    environment = load(f"{path}:Slow")
    with pytest.raises(EnvironmentFault, match=r"within 0\.05 s .*slow\.py:10\)"):
        await play(environment, checked_tasks(environment, "train", 0, 1)[0], lambda episode: "done")
