"""A small coding agent: read what a function shall do, write it, see real test output, fix it, say "done"."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from agentrl.environment import Done, Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, tool, tool_call
from agentrl.types import Termination
from environments.code_agent import asserted, execution, problems, tasks, teacher
from environments.splits import check_split
from sandboxes.contract import SandboxSpec
from sandboxes.lazy import LazySandbox

FREE_TURNS = 3
TURN_COST = 0.05


class CodeAgent(Environment):
    """Reward 1 when all tests pass in the grading sandbox, less 0.05 for each turn over three; 0 without a clean "done"."""

    version = "2"
    run_defaults: ClassVar[Mapping[str, float]] = {"algorithm.ratio_low": 0.2, "algorithm.ratio_high": 4.0}
    sandbox = SandboxSpec(memory_mb=256, pids=32)
    max_turns = 6
    max_turn_tokens = 40
    max_tokens = 160
    grades_truncated = True
    strict_calls = True
    tokenizer_hints: TokenizerHints | None = TokenizerHints(
        split=r"\d|, then |; |\n|\(x\): |\(x\)(?= as)",
        scaffold=(
            '<tool_call>{"name": "python", "arguments": {"code": "def ',
            '<tool_call>{"name": "read", "arguments": {"path": "',
            '"}}</tool_call>',
            "return x",
        ),
    )

    def __init__(self, data: Path | None = None) -> None:
        """``data``: a file, or a folder of splits, with rows as HumanEval or MBPP have them. Default: generated tasks."""
        self.data = data
        self.judge = execution if data is None else asserted
        if data is not None:
            problems.read(data, "train", 0)  # a file that can't be opened is refused before any work
            self.max_turn_tokens, self.max_tokens, self.strict_calls = 1024, 8192, False
            self.tokenizer_hints = None

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        if self.data is not None:
            return list(problems.read(self.data, split, n))
        check_split(split)
        return list(itertools.islice(tasks.generate(split, seed), n))

    def messages(self, task: Task) -> list[Message]:
        if self.data is not None:
            return [Message("user", problems.prompt(task.payload))]
        return [Message("user", f"Implement {task.payload['function']}(x) as {task.payload['file']} says.")]

    async def setup(self, episode: Episode) -> None:
        episode.state.code = None
        episode.state.failed = False

    @tool(side_effects=False)
    async def read(self, episode: Episode, path: str) -> str:
        """Return the text of a file."""
        # The one file is part of the task, so a sandbox is needed for execution alone.
        payload = episode.task.payload
        return str(payload["text"]) if path == payload["file"] else "error: no such file"

    @tool(side_effects=False)
    async def python(self, episode: Episode, code: str) -> str:
        """Run code that defines the function against two tests."""
        episode.state.code = code
        shown, episode.state.failed = await self.judge.try_out(episode.sandbox, code, episode.task.payload)
        return shown

    def wrong_call(self, why: str) -> str:
        return "error: bad tool call" if self.data is None else super().wrong_call(why)

    async def respond(self, episode: Episode, text: str) -> Message | Done:
        """Only "done" ends the episode: were any other text accepted, garbage after a passing run would be rewarded."""
        why = 'call a tool, or answer exactly "done" to hand in the last code you ran'
        return Done() if text.strip() == "done" else Message("tool", self.wrong_call(why))

    async def reward(self, episode: Episode, sandbox: LazySandbox) -> Reward:
        code = episode.state.code
        if code is None or episode.state.failed or episode.ended is not Termination.TERMINATED:
            return Reward(0.0, False, self.name, self.version)
        failure = await self.judge.verdict(sandbox, code, episode.task.payload)
        if failure is not None:
            return Reward(0.0, False, self.name, self.version, {"failure": failure})
        return Reward(1.0 - TURN_COST * max(0, episode.n_turns - FREE_TURNS), True, self.name, self.version)

    def gold(self, task: Task) -> Sequence[str]:
        generated = self.data is None
        code = tasks.solution(task.payload["function"], tasks.steps_of(task)) if generated else task.payload["solution"]
        return [tool_call("read", path=task.payload["file"]), tool_call("python", code=code), "done"]

    @property
    def can_demonstrate(self) -> bool:
        return self.data is None

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)
