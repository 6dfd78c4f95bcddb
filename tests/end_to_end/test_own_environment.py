"""Environments of a user, in a file: what they may return, and what a user sees when they fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command_line import CommandLine

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "write-an-environment.md"
SOURCE = '''
from agentrl.environment import Environment, Message, Task


class Numbers(Environment):
    """Any answer will do; a verdict is a plain number."""

    max_turn_tokens = 4
    max_turns = 1

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def tasks(self, split, seed, n):
        return [Task(f"{split}-{i}", {"i": i}, split) for i in range(n)]

    def messages(self, task):
        return [Message("user", "say a number")]

    async def reward(self, episode, sandbox):
        return self.least + episode.task.payload["i"] % 2


class Ungraded(Numbers):
    """Every episode runs out of its budget, and such are not graded."""

    max_turn_tokens = 1


class Broken(Numbers):
    grades_truncated = True

    async def reward(self, episode, sandbox):
        raise KeyError("the answer key is missing")
'''
SMALL = [
    "trainer.steps=2", "trainer.batch=8", "rollout.concurrency=16", "evaluation.episodes=4", "evaluation.every=0",
    "algorithm.critic.warmup_batches=1",
]  # fmt: skip


@pytest.fixture
def file(command_line: CommandLine) -> Path:
    path = command_line.base / "numbers_environment.py"
    path.write_text(SOURCE)
    return path


def arguments(command_line: CommandLine, file: Path, name: str) -> list[str]:
    model = command_line.base / "runs" / "learned" / "model"
    return ["train", "--env", f"{file}:{name}", "--model", str(model), "--name", name.lower(), *SMALL]


@pytest.mark.parametrize("name", ["Numbers", "Ungraded"])
def test_rewards_without_success_or_none_at_all__are_trained_on(
    name: str, learned: str, command_line: CommandLine, file: Path
) -> None:
    output = command_line.run(*arguments(command_line, file, name), "environment_options.least=10")
    assert "conservation OK" in output
    assert "ended with code" not in output
    steps = [
        json.loads(line) for line in command_line.run("db", "query", "steps", "--run", name.lower(), "--json").splitlines()
    ]
    assert len(steps) == 2
    assert (steps[0]["reward_mean"] is None) == (name == "Ungraded")
    if name == "Numbers":
        assert 10.0 <= steps[0]["reward_mean"] <= 11.0


def test_reward_that_raises__is_told_and_ends_the_run(learned: str, command_line: CommandLine, file: Path) -> None:
    output = command_line.run(*arguments(command_line, file, "Broken"), code=2)
    assert "the answer key is missing" in output
    assert "none ended well" in output
    line = SOURCE.splitlines().index('        raise KeyError("the answer key is missing")') + 1
    assert "environment 'broken', task 'train-" in output
    assert f"({file.name}:{line})" in output
    kinds = command_line.run("db", "query", "episode_errors", "--run", "broken", "--json").splitlines()
    failed = next(kind for kind in map(json.loads, kinds) if kind["termination"] == "failed")
    shown = command_line.run("show", failed["newest"])
    assert "failed: EnvironmentFault" in shown, "no trajectory has a verdict"
    assert "agentrl train --resume broken" in output


def test_no_demonstrations_and_no_model__is_refused_at_once(command_line: CommandLine, file: Path) -> None:
    output = command_line.run("train", "--env", f"{file}:Numbers", "--dry-run", code=2)
    assert "demonstrator" in output
    assert "--model" in output


def test_notes_of_the_howto__learn(command_line: CommandLine) -> None:
    howto = HOWTO.read_text()
    (notes,) = re.findall(r"```python\n(# notes\.py\n.*?)```", howto, re.DOTALL)
    (command_line.base / "notes.py").write_text(notes)
    (line,) = re.findall(r"^agentrl (train --env notes\.py.*)$", howto, re.MULTILINE)
    output = command_line.run(*line.split())
    (scores,) = re.findall(r"held-out success +([0-9.]+).*?-> +([0-9.]+)", output)
    before, after = map(float, scores)
    assert after >= before + 0.05
