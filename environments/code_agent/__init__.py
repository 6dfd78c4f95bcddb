"""A small coding agent: read what a function shall do, write it, see real test output, fix it, say "done"."""

from __future__ import annotations

import itertools
import random

from agentrl.environment import Done, Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, tool
from agentrl.types import Termination
from environments.code_agent import execution, tasks, teacher
from sandboxes.contract import Sandbox, SandboxSpec

VISIBLE_TESTS = 2
FREE_TURNS = 3
TURN_COST = 0.05


class CodeAgent(Environment):
    """Reward 1 when all six tests pass in the grading sandbox, less 0.05 for each turn over three; 0 without a clean "done"."""

    version = "2"
    dis_bounds = (0.2, 4.0)
    sandbox = SandboxSpec(memory_mb=256, pids=32)
    max_turns = 6
    max_turn_tokens = 40
    max_tokens = 160
    # Longer than the wait for a sandbox and the run's own limit together: a busy machine must not read like slow code.
    tool_timeout_s = 90.0
    grade_timeout_s = 90.0
    grades_truncated = True
    strict_calls = True
    tokenizer_hints = TokenizerHints(
        split=r"\d|, then |; |\n|\(x\): |\(x\)(?= as)",
        scaffold=(
            "<|im_start|>user\n",
            "<|im_end|>\n<|im_start|>assistant\n",
            "\n<|im_start|>user\n<tool_response>",
            "</tool_response><|im_end|>\n<|im_start|>assistant\n",
            '<tool_call>{"name": "python", "arguments": {"code": "def ',
            '<tool_call>{"name": "read", "arguments": {"path": "',
            '"}}</tool_call>',
            "return x",
        ),
    )

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        if split not in ("train", "heldout"):
            raise ValueError(f"there is no split {split!r}: train and heldout")
        return list(itertools.islice(tasks.generate(split, seed), n))

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", f"Implement {task.payload['function']}(x) as {task.payload['file']} says.")]

    async def setup(self, episode: Episode) -> None:
        episode.state.code = None
        episode.state.failed = False

    @tool
    async def read(self, episode: Episode, path: str) -> str:
        """Return the text of a file."""
        # The one file is part of the task, so a sandbox is needed for execution alone.
        payload = episode.task.payload
        return str(payload["text"]) if path == payload["file"] else "error: no such file"

    @tool
    async def python(self, episode: Episode, code: str) -> str:
        """Run code that defines the function against two tests."""
        payload = episode.task.payload
        episode.state.code = code
        visible = slice(VISIBLE_TESTS)
        outcome = await execution.run(episode.sandbox, code, payload["function"], payload["inputs"][visible])
        failure = execution.first_failure(outcome, payload["expected"][visible])
        episode.state.failed = failure is not None
        if outcome.error is not None:
            return f"error: {outcome.error}"
        return "passed" if failure is None else f"FAIL {failure}"

    def wrong_call(self, why: str) -> str:
        return "error: bad tool call"

    async def respond(self, episode: Episode, text: str) -> Message | Done:
        """Only "done" ends the episode: were any other text accepted, garbage after a passing run would be rewarded."""
        return Done() if text.strip() == "done" else Message("tool", self.wrong_call(text))

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        code, payload = episode.state.code, episode.task.payload
        # The visible tests are the first of the six: what failed them needs no second run.
        if code is None or episode.state.failed or episode.ended is not Termination.TERMINATED:
            return Reward(0.0, False, self.name, self.version)
        outcome = await execution.run(sandbox, code, payload["function"], payload["inputs"])
        failure = execution.first_failure(outcome, payload["expected"])
        if failure is not None:
            return Reward(0.0, False, self.name, self.version, {"failure": failure})
        return Reward(1.0 - TURN_COST * max(0, episode.n_turns - FREE_TURNS), True, self.name, self.version)

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)
