"""One question, one answer, one verifier: a single turn without tools."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from agentrl.environment import Environment, Episode, Message, Policy, Reward, Task, TokenizerHints
from agentrl.environment.sources import Row, Source, rows_of_split
from agentrl.errors import UsageError
from agentrl.types import Json, Termination
from environments.answers import final_answer, number, same_number, same_text
from environments.qa_verify import questions, teacher
from environments.splits import check_split
from sandboxes.contract import Sandbox

Check = Literal["text", "number"]


class QaVerify(Environment):
    """Questions about countries. Reward 1 for the right answer, else 0."""

    run_defaults: ClassVar[Mapping[str, Json]] = {
        # A single turn bears older data than an agent's many: 0.35 to 0.5, where agents take 0.2 to 0.3.
        "staleness.eta": 0.4,
        # A demonstration is one word: a model from scratch needs more of them at once than of long ones.
        "warm_start.batch": 128,
        "warm_start.steps": 800,
        "warm_start.demonstrations": 3000,
    }
    """Settings that runs of this environment start from."""
    max_turns = 1
    max_turn_tokens = 16
    max_tokens = 48
    grades_truncated = True
    tokenizer_hints: TokenizerHints | None = TokenizerHints(split=r" ?[A-Za-z]+|[?.:,]", scaffold=())

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        check_split(split)
        return list(itertools.islice(self.generate(split, seed), n))

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        """Tasks of ``split``."""
        return questions.generate(split, seed)

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", task.payload["question"])]

    def verify(self, text: str, task: Task) -> bool:
        """Whether the one turn is right."""
        return text.strip() == task.payload["answers"][0]

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        right = episode.ended is Termination.TERMINATED and self.verify(episode.turns[-1].text, episode.task)
        return Reward(float(right), right, self.name, self.version)

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)

    def gold(self, task: Task) -> list[str]:
        return [str(task.payload["answers"][0])]


class QaVerifyLarge(QaVerify):
    """For real models: the questions of ``data``, rows with ``question`` and ``answer`` (a text or a list of accepted ones).

    ``check``: ``text`` compares letters and digits, ``number`` compares values within ``tolerance`` (relative).
    """

    max_turn_tokens = 4096
    max_tokens = 8192
    # Nobody wrote demonstrations for a user's questions.
    demonstrator = Environment.demonstrator
    tokenizer_hints = None
    data: Source | None = None

    def __init__(self, data: Path | None = None, check: Check = "text", tolerance: float = 0.0) -> None:
        self.data = data if data is not None else self.data
        if self.data is None:
            raise UsageError(f"{self.name} needs questions: environment_options.data=FILE, with question and answer a row.")
        self.check = check
        self.tolerance = tolerance

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        assert self.data is not None
        rows = rows_of_split(self.data, split, key=lambda row: str(row.get("question")))
        return (self._task(row, index, split) for index, row in enumerate(rows))

    def messages(self, task: Task) -> list[Message]:
        instruction = 'Answer the question. End with a line "Answer: " and the answer alone, as short as it can be.'
        return [Message("system", instruction), Message("user", task.payload["question"])]

    def verify(self, text: str, task: Task) -> bool:
        given, accepted = final_answer(text), task.payload["answers"]
        if self.check == "number":
            return any(same_number(given, right, self.tolerance) for right in accepted)
        return same_text(given, *accepted)

    def gold(self, task: Task) -> list[str]:
        return [f"Answer: {task.payload['answers'][0]}"]

    def _task(self, row: Row, index: int, split: str) -> Task:
        question, value = row.get("question"), row.get("answer", row.get("answers"))
        answers = value if isinstance(value, list) else [value]
        if not isinstance(question, str) or not answers or any(item in (None, "") for item in answers):
            raise UsageError(f"Row {index} of the questions needs question and answer; it has {', '.join(map(str, row))}.")
        if self.check == "number" and any(number(str(item)) is None for item in answers):
            raise UsageError(f"Row {index} of the questions: {answers!r:.100} is no number, and check=number was asked for.")
        return Task(f"{index:06}", {"question": question, "answers": [str(item) for item in answers]}, split)
