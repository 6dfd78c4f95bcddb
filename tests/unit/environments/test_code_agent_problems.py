"""code_agent on files with rows as HumanEval and MBPP have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task, tool_call
from agentrl.environment.base import checked_tasks
from agentrl.environment.demonstrate import Demonstration, play
from agentrl.environment.registry import load
from agentrl.errors import EnvironmentFault, UsageError
from environments.code_agent import CodeAgent
from tests.unit.environments.problem_rows import CLAMP, HALVES, PAIRS, ROOT, ROWS

# As deep as the host can still read, and may no longer be able to write.
NESTED = """
import json, os, sys
calls = sys._getframe(1).f_locals["given"]["calls"]
deep = "[" * 985 + "]" * 985
os.write(1, ("\\n" + '{"answers": [' + ", ".join(['["value", ' + deep + "]"] * len(calls)) + "]}").encode())
os._exit(0)
"""


def as_file(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def agent(folder: Path, *rows: dict[str, Any]) -> tuple[CodeAgent, list[Task]]:
    (folder / "splits").mkdir(exist_ok=True)
    as_file(folder / "splits", list(rows), "train.jsonl")
    as_file(folder / "splits", [], "test.jsonl")
    environment = CodeAgent(folder / "splits")
    return environment, checked_tasks(environment, "train", 0, 100)


async def hand_in(environment: CodeAgent, task: Task, code: str, pool: Any) -> Demonstration:
    turns = [tool_call("python", code=code), "done"]
    return await play(environment, task, lambda episode: turns[episode.n_turns], pool)


async def failure(environment: CodeAgent, task: Task, code: str, pool: Any) -> str | None:
    played = await hand_in(environment, task, code, pool)
    assert played.reward is not None
    assert (played.reward.value, played.reward.success) == ((0.0, False) if "failure" in played.reward.detail else (1.0, True))
    return played.reward.detail.get("failure")


async def test_gold_of_every_row__is_accepted(tmp_path: Path, pool: Any) -> None:
    environment, tasks = agent(tmp_path, *ROWS)
    assert [task.id for task in tasks] == ["Own/0", "Own/1", "MBPP/77", "MBPP/78"]
    for task in tasks:
        turns = environment.gold(task)
        played = await play(environment, task, lambda episode, turns=turns: turns[episode.n_turns], pool)
        assert played.reward is not None
        assert (played.reward.success, played.reward.detail) == (True, {})


@pytest.mark.parametrize(
    ("row", "code", "why"),
    [
        (CLAMP, "def clamp(values, low, high): return values", "AssertionError"),
        (CLAMP, "def clamp(values, low, high): return [max(v, low) for v in values]", "AssertionError"),
        (CLAMP, "def clamp(values, low, high): return (min(max(v, low), high) for v in values)", "TypeError"),
        (CLAMP, "def clamp(values, low, high: return 1", "SyntaxError"),
        (CLAMP, NESTED, "Killed|AssertionError|TypeError|ValueError|RecursionError"),
        (CLAMP, "def other(): pass", "KeyError: 'clamp'"),
        (CLAMP, "def clamp(values, low, high):\n while True: pass", "Killed: no end"),
        (ROOT, "def root(k): return 0.0", "AssertionError"),
        (ROOT, "def root(k): return -k[0] / k[1]", "RuntimeError: ZeroDivisionError|ZeroDivisionError"),
        (PAIRS, "def pairs(words): return [(word, len(word)) for word in words]", "AssertionError"),
        (HALVES, "def halves(n): return n / 2", "TypeError"),
        (HALVES, "def halves(n): return None if n is None else n // 2", "AssertionError"),
    ],
)
async def test_wrong_solution__is_rejected(
    tmp_path: Path, pool: Any, row: dict[str, Any], code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.code_agent.asserted.TIMEOUT_S", 1.0)
    environment, (task,) = agent(tmp_path, row)
    said = await failure(environment, task, code, pool)
    assert said is not None
    assert any(said.startswith(start) for start in why.split("|")), said


async def test_hidden_tests__never_share_a_sandbox_with_the_solution(tmp_path: Path, pool: Any) -> None:
    environment, (task,) = agent(tmp_path, PAIRS)
    await hand_in(environment, task, "MARK = 'solution'\n" + PAIRS["code"], pool)
    programs = ["\n".join(box.programs) for box in pool.given]
    assert ["# hidden" in text for text in programs] == [False, True, False, True]
    assert ["MARK = " in text for text in programs] == [True, False, True, False]


async def test_tests_that_do_not_run__are_a_fault_and_no_reward(
    tmp_path: Path, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.code_agent.asserted.TIMEOUT_S", 0.5)
    endless = {**CLAMP, "test": "def check(candidate):\n    while True: pass\n"}
    environment, (task,) = agent(tmp_path, endless)
    with pytest.raises(EnvironmentFault, match="hidden tests of clamp don't run"):
        await hand_in(environment, task, "def clamp(values, low, high): return values", pool)


async def test_prompt_and_tool__show_the_problem_and_one_test(tmp_path: Path, pool: Any) -> None:
    environment, (task,) = agent(tmp_path, PAIRS)
    (message,) = environment.messages(task)
    assert PAIRS["text"] in message.content
    assert PAIRS["test_list"][0] in message.content
    assert PAIRS["test_list"][1] not in message.content
    assert "ccc" not in message.content
    played = await hand_in(environment, task, "def pairs(words): return 1", pool)
    assert "AssertionError" in str(played.entries[2])


def test_one_file__is_divided_into_splits_without_overlap(tmp_path: Path) -> None:
    rows = [{**CLAMP, "task_id": f"Own/{number}"} for number in range(60)]
    environment = load("code_agent", {"data": str(as_file(tmp_path, rows))})
    ids = {split: {task.id for task in checked_tasks(environment, split, 0, 100)} for split in ("train", "heldout")}
    assert ids["train"].isdisjoint(ids["heldout"])
    assert len(ids["train"] | ids["heldout"]) == 60
    assert not environment.can_demonstrate


def test_data_that_does_not_fit__refused_with_file_and_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.jsonl does not exist"):
        load("code_agent", {"data": str(tmp_path / "absent.jsonl")})
    with pytest.raises(UsageError, match=r"has no option 'date' \(did you mean 'data'"):
        load("code_agent", {"date": "x"})
    for row, why in (
        ({"question": "?"}, "shaped neither like HumanEval .* it has question"),
        ({**CLAMP, "canonical_solution": "    return ("}, "task Own/0: its code can't be read"),
        ({**CLAMP, "entry_point": "other"}, "it does not define other"),
        ({**PAIRS, "test_list": ["assert True"], "challenge_test_list": []}, "its tests call no function"),
        ({**PAIRS, "code": 5}, "task MBPP/77: its code can't be read"),
    ):
        environment = CodeAgent(as_file(tmp_path, [row]))
        with pytest.raises(UsageError, match=why):
            environment.tasks("train", 0, 10) + environment.tasks("heldout", 0, 10)
