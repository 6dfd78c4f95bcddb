"""The how-to's code works as it is printed there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.environment import Done, Environment, Episode, Message, Step, Task
from agentrl.environment.base import checked_tasks
from agentrl.environment.demonstrate import collect, play
from agentrl.environment.registry import load
from agentrl.environment.validation import validate
from sandboxes.local import UnsafeLocal
from sandboxes.pool import Pool

HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "write-an-environment.md"
BLOCKS = re.findall(r"```python\n(.*?)```", HOWTO.read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in BLOCKS:
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
    return tmp_path


def test_calculator__takes_25_lines(folder: Path) -> None:
    lines = (folder / "calculator.py").read_text().splitlines()
    assert sum(1 for line in lines if line.strip() and not line.startswith("#")) <= 25


def test_calculator__has_disjoint_reproducible_splits(folder: Path) -> None:
    calculator = load(f"{folder}/calculator.py:Calculator")
    train, heldout = (checked_tasks(calculator, split, 3, 200) for split in ("train", "heldout"))
    questions = [{(task.payload["a"], task.payload["b"]) for task in tasks} for tasks in (train, heldout)]
    assert questions[0].isdisjoint(questions[1])
    assert checked_tasks(calculator, "train", 3, 200) == train


def test_printed_script__prints_what_the_text_says(folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "try_calculator.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(HOWTO.parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "terminated 1.0"
    assert "The last line printed is `terminated 1.0`." in HOWTO.read_text()


@pytest.mark.parametrize("command", ["show", "validate", "play"])
def test_printed_commands__work_on_the_calculator(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(rf"^agentrl (env {command} calculator.*)$", HOWTO.read_text(), re.MULTILINE)
    monkeypatch.chdir(folder)
    (task,) = load("calculator.py:Calculator").tasks("train", 0, 1)
    typed = "/multiply left=3 right=4\n{}\n".format(task.payload["a"] * task.payload["b"])
    result = CliRunner().invoke(app, line.split(), input=typed)
    assert result.exit_code == 0
    said = {"show": "Return left times right.", "validate": "gold not in prompts", "play": "terminated; reward 1"}
    assert said[command] in result.output
    assert "FAIL" not in result.output


def test_questions_from_a_file__are_valid_and_their_option_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    rows = [{"id": f"q{i}", "question": f"What is {i} + {i}?", "answer": f"{2 * i}!"} for i in range(40)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (line,) = re.findall(r"^agentrl (env show questions.*)$", HOWTO.read_text(), re.MULTILINE)
    assert "most_words" in CliRunner().invoke(app, line.split()).output
    assert CliRunner().invoke(app, line.replace("show", "validate").split()).exit_code == 0


async def test_notes__are_valid_and_demonstrated_with_mistakes(folder: Path) -> None:
    notes = load(f"{folder}/notes.py:Notes")
    made = await validate(notes, UnsafeLocal(), n=2, repeats=1)
    assert [check for check in made if check.ok is False] == []
    pool = Pool(UnsafeLocal(), 2)
    demonstrations = await collect(notes, 0, 24, pool)
    await pool.close()
    success = [bool(d.reward and d.reward.success) for d in demonstrations]
    assert 4 < sum(success) < 24
    assert {d.reward.detail["reads"] for d in demonstrations if d.reward} == {1}


def test_checks_named_in_the_text__are_those_that_are_made(folder: Path) -> None:
    table = HOWTO.read_text().split("| check | it fails when |\n|---|---|\n")[1].split("\n\n")[0]
    named = [line.split("|")[1].strip() for line in table.splitlines()]
    made = asyncio.run(validate(load("code_agent"), UnsafeLocal(), n=1, repeats=1, compared=20))
    assert named == [check.name for check in made]


def test_sandbox_example__declares_its_tool() -> None:
    (block,) = (block for block in BLOCKS if "class Shell" in block)
    space: dict[str, object] = {}
    exec("from agentrl.environment import Environment, tool\n" + block, space)
    shell = space["Shell"]
    assert isinstance(shell, type)
    assert issubclass(shell, Environment)
    assert list(shell.tools) == ["bash"]


def test_budgets_named_in_the_text__exist() -> None:
    (sentence,) = re.findall(r"\*\*Budgets\*\* are class attributes, .*?: (.*?)\n\n", HOWTO.read_text(), re.DOTALL)
    names = re.findall(r"`(\w+)`", sentence)
    assert len(names) == 8
    assert all(hasattr(Environment, name) for name in names)


def test_compaction__goes_on_from_the_summary() -> None:
    (code,) = (block for block in BLOCKS if "async def compact" in block)
    scope: dict[str, Any] = {"replace": replace, "Step": Step, "Message": Message, "Counting": Counting}
    exec("class Summing(Counting):\n" + indent(code, "    "), scope)

    def policy(episode: Episode) -> str:
        episode.context_tokens = 4000 * (episode.n_turns == 1)
        return ("first", "second", "a summary", "end")[episode.n_turns]

    shown = asyncio.run(play(scope["Summing"](), Task("t", {}), policy))
    first, second = shown.contexts
    assert [entry for entry in first if isinstance(entry, str)] == ["first", "second", "a summary"]
    assert second == (Message("user", "count"), Message("user", "So far: a summary\nGo on."), "end")
    assert isinstance(first[-2], Message)
    assert first[-2].content == "Sum up what you know so far."


class Counting(Environment):
    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "count")]

    async def respond(self, episode: Episode, text: str) -> str | Done:
        return Done() if text == "end" else "go on"

    async def reward(self, episode: Episode, sandbox: Any) -> float:
        return 1.0
