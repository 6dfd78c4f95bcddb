"""Questions about a database in the sandbox: queries, answers, databases of one's own, hostile SQL."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Message, tool_call
from agentrl.environment.demonstrate import Demonstration, play
from agentrl.errors import EnvironmentFault, UsageError
from environments.sql_agent import SqlAgent, SqlAgentLarge, database, questions
from environments.sql_agent.answers import same_rows
from sandboxes.pool import Pool

ENV = SqlAgent()
TASK = ENV.tasks("heldout", 1, 1)[0]
((ANSWER,),) = TASK.payload["rows"]


async def script(pool: Pool, *texts: str) -> Demonstration:
    return await play(ENV, TASK, lambda episode: texts[episode.n_turns], pool)


def observations(played: Demonstration) -> list[str]:
    return [entry.content for entry in played.entries[1:] if isinstance(entry, Message)]


def earned(played: Demonstration) -> tuple[float, bool | None]:
    assert played.reward is not None
    return played.reward.value, played.reward.success


async def test_query__shows_rows_of_the_task_s_own_database(isolated: Pool) -> None:
    played = await script(isolated, tool_call("query", sql="select who, n from sale order by rowid limit 2"), str(ANSWER))
    rows = database.gold(ENV.database_of(TASK), "select who, n from sale order by rowid limit 2")
    assert observations(played) == ["\n".join(f"{who}|{n}" for who, n in rows)]
    assert earned(played) == (1.0, True)


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("select n from moon", "error: no such table: moon"),
        ("selct", 'error: near "selct": syntax error'),
        ("", "(no output)"),
        ("select 1; select 2", "error: You can only execute one statement at a time."),
        ("select null, x'00ff', 1.5", "NULL|00ff|1.5"),
        ("select who from sale where 0", "(no output)"),
        ("select '\ud800'", "error: "),
    ],
)
async def test_odd_query__is_an_observation(sql: str, shown: str, isolated: Pool) -> None:
    text = observations(await script(isolated, tool_call("query", sql=sql), str(ANSWER)))[0]
    assert text == shown or (shown == "error: " and text.startswith("error: "))


async def test_long_results__are_cut(isolated: Pool) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select i, hex(zeroblob(500)) from n"
    text = observations(await script(isolated, tool_call("query", sql=endless), str(ANSWER)))[0]
    assert text.endswith("... more than 50 rows")
    assert text.splitlines()[0] == "1|" + "0" * 200 + "..."


async def test_query_without_end__is_stopped_and_the_next_one_works(isolated: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlAgent, "query_timeout_s", 0.5)
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    played = await script(isolated, tool_call("query", sql=endless), tool_call("query", sql="select 7"), str(ANSWER))
    assert observations(played) == ["error: no result within 0.5 s", "7"]


async def test_changing_the_data__changes_no_verdict(isolated: Pool) -> None:
    wipe = tool_call("query", sql="delete from sale")
    again = tool_call("query", sql=TASK.payload["query"])
    played = await script(isolated, wipe, again, "0")
    assert earned(played) == (0.0, False)
    assert earned(await script(isolated, wipe, str(ANSWER))) == (1.0, True)


async def test_attached_files__stay_in_the_sandbox(isolated: Pool) -> None:
    attach = tool_call("query", sql="attach '/etc/hosts-of-the-policy' as x")
    assert observations(await script(isolated, attach, str(ANSWER)))[0].startswith("error: unable to open database")
    assert not Path("/etc/hosts-of-the-policy").exists()


def test_gold__is_what_plain_python_counts() -> None:
    for task in ENV.tasks("train", 4, 200):
        rows = database.gold(ENV.database_of(task), "select who, what, n from sale")
        for name, value in questions.conditions_of(task):
            test = {"who": lambda r, v=value: r[0] == v, "what": lambda r, v=value: r[1] == v,
                    "above": lambda r, v=value: r[2] > int(v), "below": lambda r, v=value: r[2] < int(v)}[name]  # fmt: skip
            rows = [row for row in rows if test(row)]  # type: ignore[no-untyped-call]
        numbers = [row[2] for row in rows]
        expected = {"count": len(rows), "sum": sum(numbers), "max": max(numbers), "min": min(numbers),
                    "goods": len({row[1] for row in rows}), "people": len({row[0] for row in rows})}  # fmt: skip
        assert task.payload["rows"] == [[expected[task.payload["aggregate"]]]]


def test_heldout_combinations__are_a_fifth_and_none_is_trained_on() -> None:
    assert len(questions.HELDOUT) == 6  # of 30

    def combinations(split: str) -> set[tuple[str, ...]]:
        tasks = ENV.tasks(split, 0, 300)
        return {(t.payload["aggregate"], *(name for name, _ in questions.conditions_of(t))) for t in tasks}

    assert combinations("heldout") == questions.HELDOUT
    assert combinations("train").isdisjoint(questions.HELDOUT)


@pytest.mark.parametrize(
    ("answer", "rows", "ordered", "right"),
    [
        ("7", [[7]], False, True),
        ("7.0", [[7]], False, True),
        ("1234.5", [[1234.5]], False, True),
        ("1,234.5", [[1234.5]], False, True),
        ("0.333333", [[1 / 3]], False, True),
        ("0.33", [[1 / 3]], False, False),
        ("Porto.", [["Porto"]], False, True),
        ("NULL", [[None]], False, True),
        ("0", [[None]], False, False),
        ("Lyon, Porto", [["Porto"], ["Lyon"]], False, True),
        ("Lyon, Porto", [["Porto"], ["Lyon"]], True, False),
        ("Porto\nLyon", [["Porto"], ["Lyon"]], True, True),
        ("Porto and Lyon", [["Porto"], ["Lyon"]], True, True),
        ("Porto, Lyon, Turin", [["Porto"], ["Lyon"]], False, False),
        ("Porto", [["Porto"], ["Lyon"]], False, False),
        ("Ada, 3; Bo, 1", [["Ada", 3], ["Bo", 1]], True, True),
        ("", [["Porto"]], False, False),
        ("", [], False, False),
        ("none", [], False, True),
        ("Porto", [], False, False),
        ("9" * 10_000, [[9]], False, False),
    ],
)
def test_answers__are_compared_with_the_rows(answer: str, rows: database.Rows, ordered: bool, right: bool) -> None:
    assert same_rows(answer, rows, ordered) is right


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "world").mkdir()
    with sqlite3.connect(tmp_path / "world" / "world.sqlite") as made:
        made.executescript(
            "create table city(name text, people integer); insert into city values ('Porto', 231), ('Lyon', 522)"
        )
    made.close()
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_questions_of_ones_own__are_asked_of_their_database(folder: Path, isolated: Pool) -> None:
    query = "select name from city order by people desc limit 1"
    row = {"db_id": "world", "SQL": query, "evidence": "size is people"}
    rows = [{"question": f"{i}: the largest city?", **row} for i in range(10)]
    environment = SqlAgentLarge(data=write(folder / "q.jsonl", rows), databases=folder)
    task = environment.tasks("train", 0, 1)[0]
    assert task.payload["question"].endswith("the largest city?\nsize is people")
    turns = [tool_call("query", sql="select name from city order by people"), "It is Lyon.\nAnswer: Lyon"]
    played = await play(environment, task, lambda episode: turns[episode.n_turns], isolated)
    assert observations(played)[1] == "Porto\nLyon"
    assert earned(played) == (1.0, True)


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        ({"question": "q", "db_id": "world"}, UsageError, "needs question, db_id and query"),
        ({"question": "q", "db_id": "../world", "query": "select 1"}, UsageError, "is no file name"),
        ({"question": "q", "db_id": "moon", "query": "select 1"}, EnvironmentFault, "can't be read"),
        ({"question": "q", "db_id": "world", "query": "select moon"}, EnvironmentFault, "gold query.*no such column"),
    ],
)
def test_wrong_rows__are_refused_by_name(row: dict[str, Any], error: type[Exception], said: str, folder: Path) -> None:
    environment = SqlAgentLarge(data=write(folder / "q.jsonl", [row]), databases=folder)
    with pytest.raises(error, match=said):
        environment.tasks("train", 0, 1) or environment.tasks("heldout", 0, 1)


def test_questions_without_databases__are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="set both data"):
        SqlAgentLarge(data=tmp_path)


def test_database_that_is_too_large_to_send__is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.sqlite"
    with open(large, "wb") as file:
        file.truncate(33 << 20)
    with pytest.raises(EnvironmentFault, match="33 MB"):
        database.read_file(large)
