"""`agentrl env`: what each command prints and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentrl.cli.env_play import NotATurn, turn_text
from agentrl.cli.main import app
from agentrl.environment import Environment, tool, tool_call
from agentrl.errors import UsageError
from tests.unit.environments.problem_rows import ROWS

ROOT = Path(__file__).parents[3]
SOURCE = """\
from agentrl.environment import Environment, Message, Task, tool, tool_call

class Sum(Environment):
    max_turns = 3

    def __init__(self, most: int = 9) -> None:
        self.most = most

    def tasks(self, split, seed, n):
        first = 0 if split == "train" else 500
        return [Task(f"{split}/{i}", {"a": first + i, "b": self.most}, split) for i in range(min(n, 5))]

    def messages(self, task):
        return [Message("user", "a+b for {a} and {b}".format(**task.payload))]

    @tool(side_effects=False)
    def add(self, episode, left: int, right: int, note: str = "") -> str:
        "Add two numbers."
        episode.add_reward(0.5)
        return f"{left + right} {note}"

    async def reward(self, episode, sandbox):
        return episode.turns[-1].text == str(episode.task.payload["a"] + episode.task.payload["b"])

    def gold(self, task):
        a, b = task.payload["a"], task.payload["b"]
        return [tool_call("add", left=a, right=b), str(a + b)]

class Broken(Sum):
    async def reward(self, episode, sandbox):
        return True
"""


@pytest.fixture
def name(tmp_path: Path) -> str:
    (tmp_path / "sums.py").write_text(SOURCE)
    return f"{tmp_path / 'sums.py'}:Sum"


def env(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["env", *arguments], input=typed)


def refused(*arguments: str) -> str:
    result = env(*arguments)
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_init__writes_a_package_whose_test_passes(tmp_path: Path) -> None:
    result = env("init", "word_game", "--in", str(tmp_path))
    assert result.exit_code == 0
    assert f"agentrl env validate {tmp_path}/word_game" in result.output
    assert env("show", f"{tmp_path}/word_game").exit_code == 0, "before it is installed"
    package = tmp_path / "word_game"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=package, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
    assert env("validate", f"{package}/word_game/__init__.py:WordGame").exit_code == 0
    assert 'word_game = "word_game:WordGame"' in (package / "pyproject.toml").read_text()
    assert "exists already" in refused("init", "word_game", "--in", str(tmp_path))


@pytest.mark.parametrize("bad", ["Word", "2words", "a-b", "../x", "class", "json", "agentrl", "", "x" * 60])
def test_init_with_a_name_that_can_be_none__refused(bad: str, tmp_path: Path) -> None:
    assert "can't name an environment" in refused("init", "--in", str(tmp_path), "--", bad)
    assert list(tmp_path.iterdir()) == []


def test_list__has_the_installed_ones() -> None:
    assert "environments.code_agent:CodeAgent" in env("list").output
    assert json.loads(env("list", "--json").output)["code_agent"] == "environments.code_agent:CodeAgent"


def test_show__prints_prompt_schemas_budgets_and_options(name: str) -> None:
    shown = json.loads(env("show", name, "environment_options.most=4", "--json").output)
    assert shown["prompt"] == "[user] a+b for 0 and 4"
    (schema,) = shown["tools"]
    assert schema["function"]["parameters"]["required"] == ["left", "right"]
    assert shown["budgets"]["max_turns"] == 3
    assert shown["options"] == ["most: 'int' = 9"] or shown["options"] == ["most: int = 9"]
    assert shown["sandboxes"] == "none"
    text = env("show", name, "--split", "heldout").output
    assert "  [user] a+b for 500 and 9" in text
    assert "Add two numbers." in text
    assert "memory_mb" in env("show", "code_agent").output


def test_validate__exit_code_tells_and_the_table_names_what_failed(name: str) -> None:
    good = env("validate", name)
    assert good.exit_code == 0
    assert "FAIL" not in good.output
    bad = env("validate", name.replace(":Sum", ":Broken"), "--tasks", "2")
    assert bad.exit_code == 1
    assert [line.split("│")[1].strip() for line in bad.output.splitlines() if "FAIL" in line] == ["no-op rejected"]
    as_json = json.loads(env("validate", name, "--json").output)
    assert as_json["gold accepted"] == {"ok": True, "detail": "10 of 10 episodes"}


def test_validate_of_problems_from_a_file__is_green(tmp_path: Path) -> None:
    for split, rows in (("train", ROWS[:2]), ("test", ROWS[2:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    option = f"environment_options.data={tmp_path}"
    result = env("validate", "code_agent", option, "--unsafe-local-execution", "--repeats", "1")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["show", "validate", "play"])
def test_name_or_option_that_does_not_exist__refused(command: str, name: str) -> None:
    assert "did you mean 'code_agent'" in refused(command, "code_agnet")
    assert "has no option 'mots' (did you mean 'most'?)" in refused(command, name, "environment_options.mots=4")
    assert "write environment_options.trainer.steps=..." in refused(command, name, "trainer.steps=4")


def test_play__sends_lines_and_calls_and_prints_the_verdict(name: str) -> None:
    result = env("play", name, "--task", "2", typed="/add left=2 right=9\n/nothing\n11\n")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert "[user] a+b for 2 and 9" in lines
    assert any(line.endswith("[tool] 11 ") for line in lines)
    assert "[reward of this turn] 0.5" in lines
    assert any("not sent: no tool 'nothing'; tools: add" in line for line in lines)
    assert lines[-1].endswith("terminated; reward 1, success True")


def test_play__ends_without_a_verdict_when_left_or_out_of_turns(name: str) -> None:
    assert env("play", name, typed="/quit\n").output.endswith("left; nothing was graded\n")
    assert env("play", name).output.endswith("left; nothing was graded\n")
    out = env("play", name, typed="/add left=1 right=1\n" * 3).output
    assert out.endswith("truncated_turns; such an end is not graded\n")
    assert "has 5 tasks" in refused("play", name, "--task", "5")


class Files(Environment):
    @tool
    def write(self, path: str, text: str, mode: int = 0, tags: list[str] | None = None) -> None:
        """Write a file."""


def test_line__becomes_the_turn_that_it_stands_for(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("two\nlines")
    assert turn_text("plain text", Files.tools) == "plain text"
    assert turn_text("//slash", Files.tools) == "/slash"
    line = f"/write path=7 'text=@{tmp_path / 'a file'}' mode=7 'tags=[\"a\"]'"
    assert turn_text(line, Files.tools) == tool_call("write", path="7", text="two\nlines", mode=7, tags=["a"])
    for bad, why in (
        ("/write x", "write key=value"),
        ("/write 'x", "quote"),
        ("/write text=@/absent", "can't be read"),
        ("/", "no tool"),
    ):
        with pytest.raises(NotATurn, match=why):
            turn_text(bad, Files.tools)


def test_unknown_split__is_refused_before_the_environment_is_asked() -> None:
    for command in ("show", "play"):
        assert refused(command, "search_agent", "--split", "test") == "--split is 'test'; there are train and heldout"
