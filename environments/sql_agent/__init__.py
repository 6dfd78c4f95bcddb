"""Questions about a database that only SQL in the sandbox can answer: query, read the rows, say the answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from agentrl.environment import Done, Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, tool, tool_call
from agentrl.environment.sources import Row, Source, rows_of_split
from agentrl.errors import UsageError
from agentrl.types import Termination
from environments.answers import final_answer
from environments.splits import check_split
from environments.sql_agent import database, questions, shop, teacher
from environments.sql_agent.answers import NOTHING, same_rows
from sandboxes.contract import Sandbox, SandboxSpec

QUERY_COLUMNS = ("query", "SQL", "sql")


class SqlAgent(Environment):
    """An aggregate over twelve sales. Reward 1 for the right number, less 0.05 for each turn over two, else 0."""

    sandbox = SandboxSpec(memory_mb=256, pids=32)
    max_turns = 4
    max_turn_tokens = 48
    max_tokens = 150
    grades_truncated = True
    strict_calls = True
    free_turns = 2
    turn_cost = 0.05
    query_timeout_s = 5.0
    """Limit of one query."""
    tokenizer_hints: TokenizerHints | None = TokenizerHints(
        split=r"\d|'| and | where |>=|>|<|\?| by | of | above | below |(?<=select ).*(?= from)",
        scaffold=(
            '<tool_call>{"name": "query", "arguments": {"sql": "select ',
            '"}}</tool_call>',
        ),
    )

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        check_split(split)
        return list(itertools.islice(self.generate(split, seed), n))

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        """Tasks of ``split``."""
        return questions.generate(split, seed)

    def database_of(self, task: Task) -> bytes:
        """The task's database, as an SQLite file."""
        return questions.data(task.payload["database"])

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", task.payload["question"])]

    async def setup(self, episode: Episode) -> None:
        episode.state.has_data = False

    @tool(side_effects=False)
    async def query(self, episode: Episode, sql: str) -> str:
        """Run one SQL statement (SQLite) and read its rows, a line each."""
        if not episode.state.has_data:
            await episode.sandbox.write_file(database.PATH, self.database_of(episode.task))
            episode.state.has_data = True
        return await database.query(episode.sandbox, sql, self.query_timeout_s)

    def answer_of(self, episode: Episode) -> str:
        """The answer that the last turn gives."""
        return episode.turns[-1].text.strip()

    async def respond(self, episode: Episode, text: str) -> Done:
        return Done()

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        payload = episode.task.payload
        answered = episode.ended is Termination.TERMINATED
        right = answered and same_rows(self.answer_of(episode), payload["rows"], payload.get("ordered", False))
        extra = max(0, episode.n_turns - self.free_turns)
        value = max(0.0, 1.0 - self.turn_cost * extra) if right else 0.0
        return Reward(value, right, self.name, self.version)

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)

    def gold(self, task: Task) -> list[str]:
        return teacher.solution(task)


class SqlAgentLarge(SqlAgent):
    """For real models: joins over generated shops, or the questions of ``data``.

    For questions of your own, ``data`` is a file whose rows have ``question``, ``db_id`` and the gold ``query``, and
    ``databases`` the folder that holds ``<db_id>.sqlite`` or ``<db_id>/<db_id>.sqlite``.
    """

    version = "2"
    sandbox = SandboxSpec(memory_mb=512, pids=64)
    max_turns = 16
    max_turn_tokens = 2048
    max_tokens = 24_576
    max_seconds = 1200.0
    strict_calls = False
    turn_cost = 0.0
    query_timeout_s = 30.0
    tokenizer_hints = None
    # What a model from scratch would need to imitate is more than it can hold.
    demonstrator = Environment.demonstrator
    tool_timeout_s = 60.0
    data: Source | None = None
    databases: Path | None = None

    def __init__(self, data: Path | None = None, databases: Path | None = None) -> None:
        self.data = data if data is not None else self.data
        self.databases = databases if databases is not None else self.databases
        if (self.data is None) != (self.databases is None):
            raise UsageError(f"{self.name}: set both data (the questions) and databases (their folder), or neither.")

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        if self.data is None:
            return shop.generate(split, seed)
        rows = rows_of_split(self.data, split, key=lambda row: f"{row.get('db_id')} {row.get('question')}")
        return (self._task(row, index, split) for index, row in enumerate(rows))

    def database_of(self, task: Task) -> bytes:
        name = task.payload["database"]
        return shop.data(name) if self.databases is None else self._file(name)

    def messages(self, task: Task) -> list[Message]:
        instruction = (
            "Answer the question with the query tool, which runs one SQLite statement; sqlite_master shows the tables. "
            'End with a line "Answer: " and the answer alone; several values are separated by commas, no row is "none".'
        )
        return [Message("system", instruction), Message("user", task.payload["question"])]

    def answer_of(self, episode: Episode) -> str:
        return final_answer(episode.turns[-1].text)

    def gold(self, task: Task) -> list[str]:
        shown = ", ".join(str(cell) for row in task.payload["rows"] for cell in row) or NOTHING[0]
        return [tool_call("query", sql=task.payload["query"]), f"Answer: {shown}"]

    def _task(self, row: Row, index: int, split: str) -> Task:
        question, name = row.get("question"), row.get("db_id")
        query = next((row[column] for column in QUERY_COLUMNS if row.get(column)), None)
        if not isinstance(question, str) or not isinstance(name, str) or not isinstance(query, str):
            raise UsageError(f"A row needs question, db_id and query; it has {', '.join(map(str, row))}.")
        if hint := row.get("evidence"):
            question = f"{question}\n{hint}"
        rows = database.gold(self._file(name), query)
        payload = {"question": question, "query": query, "database": name, "rows": rows, "ordered": "order by" in query.lower()}
        return Task(f"{name}/{index:06}", payload, split)

    def _file(self, name: str) -> bytes:
        folder = Path(str(self.databases)).expanduser()
        if Path(name).name != name:
            raise UsageError(f"db_id {name!r:.100} is no file name.")
        nested = folder / name / f"{name}.sqlite"
        return database.read_file(nested if nested.is_file() else folder / f"{name}.sqlite")
