"""Multi-hop questions over a local corpus with a full-text index: search, read, search again, answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from agentrl.environment import Done, Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, ToolError, tool
from agentrl.environment.sources import Source, read_rows, rows_of_split
from agentrl.errors import UsageError
from agentrl.types import Json, Termination
from environments.answers import final_answer, same_text
from environments.search_agent import teacher, world
from environments.search_agent.index import Index
from environments.splits import check_split
from sandboxes.contract import Sandbox


class SearchAgent(Environment):
    """Questions of one to three hops over 22 one-line documents. Reward 1 for the right name as the last turn, else 0."""

    version = "2"
    run_defaults: ClassVar[Mapping[str, Json]] = {
        # Facts differ from task to task, so a model from scratch has to learn to copy names, which comes late.
        "warm_start.steps": 1000,
        "warm_start.demonstrations": 4000,
    }
    """Settings that runs of this environment start from."""
    max_turns = 5
    max_turn_tokens = 40
    max_tokens = 150
    grades_truncated = True
    strict_calls = True
    tokenizer_hints: TokenizerHints | None = TokenizerHints(
        split=r"[A-Z][a-z]+| of the | of |: |, |\?",
        scaffold=(
            '<tool_call>{"name": "search", "arguments": {"query": "',
            '"}}</tool_call>',
            "What is the ",
        ),
    )

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        check_split(split)
        return list(itertools.islice(self.generate(split, seed), n))

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        """Tasks of ``split``."""
        return world.tasks(split, seed)

    def index_of(self, task: Task) -> Index:
        """What a search of ``task`` goes through."""
        return Index(world.build(world.SMALL, task.payload["world"]).documents())

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", task.payload["question"])]

    async def setup(self, episode: Episode) -> None:
        episode.state.index = self.index_of(episode.task)

    @tool(side_effects=False)
    def search(self, episode: Episode, query: str) -> str:
        """Find documents by words; the best match is shown."""
        hits = episode.state.index.search(query, limit=1)
        return hits[0].text if hits else "no document"

    async def finish(self, episode: Episode) -> None:
        del episode.state.index  # a verdict needs the turns alone, and may be given in another process

    def answer_of(self, episode: Episode) -> str:
        """The answer that the last turn gives."""
        return episode.turns[-1].text

    async def respond(self, episode: Episode, text: str) -> Done:
        return Done()

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        answered = episode.ended is Termination.TERMINATED
        right = answered and same_text(self.answer_of(episode), *episode.task.payload["answers"])
        return Reward(float(right), right, self.name, self.version)

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)

    def gold(self, task: Task) -> list[str]:
        return teacher.solution(task)


class SearchAgentLarge(SearchAgent):
    """For real models: two to four hops over prose, several hits a search, and whole documents to read.

    For a corpus of your own, ``corpus`` is a file whose rows have ``title`` and ``text``, and ``data`` a file whose rows have
    ``question`` and ``answer`` (a text, or a list of accepted ones). A subclass may set them to data sets.
    """

    version = "1"
    max_turns = 16
    max_turn_tokens = 2048
    max_tokens = 32_768
    max_seconds = 1200.0
    strict_calls = False
    tokenizer_hints = None
    # What a model from scratch would need to imitate is more than it can hold.
    demonstrator = Environment.demonstrator
    hits = 5
    corpus: Source | None = None
    data: Source | None = None

    def __init__(self, corpus: Path | None = None, data: Path | None = None) -> None:
        self.corpus = corpus if corpus is not None else self.corpus
        self.data = data if data is not None else self.data
        if (self.corpus is None) != (self.data is None):
            raise UsageError(f"{self.name}: set both corpus (the documents) and data (the questions), or neither.")
        self.world = world.build(world.LARGE)
        if self.corpus is None:
            self.index = Index(self.world.documents())
        else:
            self.index = Index((str(row.get("title", "")), _text(row, "text")) for row in read_rows(self.corpus))
            if not len(self.index):
                raise UsageError(f"{self.name}: the corpus {self.corpus!r:.200} holds no document.")

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        if self.data is None:
            return world.large_tasks(self.world, split, seed)
        rows = rows_of_split(self.data, split, key=lambda row: _text(row, "question"))
        return (
            Task(f"{index:06}", {"question": _text(row, "question"), "answers": _answers(row)}, split)
            for index, row in enumerate(rows)
        )

    def index_of(self, task: Task) -> Index:
        return self.index

    def messages(self, task: Task) -> list[Message]:
        instruction = (
            "Answer the question from the documents: search them, and read what you need. "
            'End with a line "Answer: " and the answer alone, as short as it can be.'
        )
        return [Message("system", instruction), Message("user", task.payload["question"])]

    @tool(side_effects=False)
    def search(self, episode: Episode, query: str) -> str:
        """Find documents by words; number, title and the best part of each are shown."""
        hits = episode.state.index.search(query, self.hits)
        return "\n".join(f"[{hit.number}] {hit.title}: {hit.snippet}" for hit in hits) or "no document"

    @tool(side_effects=False)
    def read(self, number: int) -> str:
        """Read a document in full, by the number that a search showed."""
        found = self.index.document(number) if 0 < number <= len(self.index) else None
        if found is None:
            raise ToolError(f"error: there is no document {number}")
        title, text = found
        return f"{title}\n{text}"

    def answer_of(self, episode: Episode) -> str:
        return final_answer(episode.turns[-1].text)

    def gold(self, task: Task) -> list[str]:
        return [f"Answer: {task.payload['answers'][0]}"]


def _text(row: dict, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"A row has no text in the column {name!r}; its columns are {', '.join(map(str, row))}.")
    return value


def _answers(row: dict) -> list[str]:
    value = row.get("answer", row.get("answers"))
    answers = [value] if isinstance(value, (str, int, float)) else value
    if not isinstance(answers, list) or not answers:
        raise UsageError(f"The answer of a question must be a text or a list of texts, not {value!r:.100}.")
    return [str(answer) for answer in answers]
