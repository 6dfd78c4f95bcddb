"""Mathematics with a Python tool: compute, then say the answer. Two sizes; the larger also takes problems from files."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from agentrl.environment import Done, Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, tool
from agentrl.environment.sources import Row, Source, rows_of_split
from agentrl.errors import UsageError
from agentrl.types import Termination
from environments.answers import final_answer
from environments.math_python import checking, execution, harder, problems, teacher
from environments.splits import check_split
from sandboxes.contract import Sandbox, SandboxSpec

QUESTION_COLUMNS = ("problem", "question", "prompt")
ANSWER_COLUMNS = ("answer", "final_answer", "solution")


class MathPython(Environment):
    """One or two operations on a number, in words. Reward 1 for the right answer, less 0.05 for each turn over two, else 0."""

    sandbox = SandboxSpec(memory_mb=256, pids=32)
    max_turns = 4
    max_turn_tokens = 40
    max_tokens = 120
    grade_timeout_s = 90.0
    grades_truncated = True
    strict_calls = True
    free_turns = 2
    turn_cost = 0.05
    python_timeout_s = 5.0
    """Limit of one program."""
    tolerance = 0.0
    """Relative; within it two numbers are the same answer."""
    tokenizer_hints: TokenizerHints | None = TokenizerHints(
        split=r"\d|, then |; |Start with |x(?=[^a-z])|=|\n",
        scaffold=(
            '<tool_call>{"name": "python", "arguments": {"code": "x=',
            '; x"}}</tool_call>',
        ),
    )

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        check_split(split)
        return list(itertools.islice(self.generate(split, seed), n))

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        """Tasks without end."""
        return problems.generate(split, seed)

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", task.payload["problem"])]

    @tool(side_effects=False)
    async def python(self, episode: Episode, code: str) -> str:
        """Run Python and read what it prints; the value of a last expression is printed too. Each call starts afresh."""
        return await execution.run_cell(episode.sandbox, code, self.python_timeout_s)

    def answer_of(self, episode: Episode) -> str:
        """The answer that the last turn gives."""
        return episode.turns[-1].text.strip()

    async def respond(self, episode: Episode, text: str) -> Done:
        return Done()

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        if episode.ended is not Termination.TERMINATED:
            return Reward(0.0, False, self.name, self.version)
        right, how = await checking.is_right(self.answer_of(episode), episode.task.payload["answer"], self.tolerance)
        extra = max(0, episode.n_turns - self.free_turns)
        value = max(0.0, 1.0 - self.turn_cost * extra) if right else 0.0
        return Reward(value, right, self.name, self.version, {"checked by": how})

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)

    def gold(self, task: Task) -> list[str]:
        return teacher.solution(task)


class MathPythonLarge(MathPython):
    """Problems for real models: generated ones of seven families, or those of ``data``. Reward 1 for the right answer.

    ``data`` is a file or folder whose rows have a ``problem`` and an ``answer``; a subclass may set it to a data set.
    """

    sandbox = SandboxSpec(memory_mb=512, pids=64)
    max_turns = 12
    max_turn_tokens = 4096
    max_tokens = 24_576
    max_seconds = 1200.0
    strict_calls = False
    turn_cost = 0.0
    python_timeout_s = 30.0
    tolerance = 1e-9
    tokenizer_hints = None
    # What a model from scratch would need to imitate is more than it can hold.
    demonstrator = Environment.demonstrator
    tool_timeout_s = 60.0
    data: Source | None = None

    def __init__(self, data: Path | None = None) -> None:
        if data is not None:
            self.data = data

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        if self.data is None:
            return harder.generate(split, seed)
        rows = rows_of_split(self.data, split, key=lambda row: _column(row, QUESTION_COLUMNS))
        return (Task(f"{index:06}", _payload(row), split) for index, row in enumerate(rows))

    def messages(self, task: Task) -> list[Message]:
        instruction = "Solve the problem. Use the python tool to compute. End with the answer alone in \\boxed{}."
        return [Message("system", instruction), Message("user", task.payload["problem"])]

    def answer_of(self, episode: Episode) -> str:
        return final_answer(episode.turns[-1].text)

    def gold(self, task: Task) -> list[str]:
        return [f"The answer is \\boxed{{{task.payload['answer']}}}."]


def _payload(row: Row) -> dict[str, str]:
    return {"problem": _column(row, QUESTION_COLUMNS), "answer": final_answer(_column(row, ANSWER_COLUMNS))}


def _column(row: Row, names: tuple[str, ...]) -> str:
    for name in names:
        if row.get(name) is not None:
            return str(row[name])
    raise UsageError(f"A row of the problems has none of the columns {', '.join(names)}; it has {', '.join(map(str, row))}.")
