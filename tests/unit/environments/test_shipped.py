"""What every shipped environment keeps: gold is accepted, nothing is not, tasks are stable and their splits disjoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Environment, Message, Task
from agentrl.environment.base import checked_tasks
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.demonstrate import Demonstration, act, collect, play
from agentrl.environment.evidence import pack, unpack
from agentrl.environment.grading import grade
from agentrl.environment.registry import installed, load
from environments.math_python import MathPython, MathPythonLarge
from environments.qa_verify import QaVerify
from environments.search_agent import SearchAgent, SearchAgentLarge
from environments.sql_agent import SqlAgent, SqlAgentLarge
from environments.terminal_agent import TerminalAgent, TerminalAgentLarge
from sandboxes.pool import Pool

SMALL = (MathPython, SearchAgent, SqlAgent, TerminalAgent, QaVerify)
LARGE = (MathPythonLarge, SearchAgentLarge, SqlAgentLarge, TerminalAgentLarge)
NEEDS_A_FILE = "qa_verify_large"


def question(task: Task) -> str:
    return str(task.payload.get("problem") or task.payload.get("question") or task.payload["instruction"])


async def said(environment: Environment, task: Task, turns: list[str], pool: Pool) -> Demonstration:
    return await play(environment, task, lambda episode: turns[min(episode.n_turns, len(turns) - 1)], pool)


@pytest.fixture(params=[*SMALL, *LARGE], ids=lambda cls: cls.name)
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param()


@pytest.fixture(params=SMALL, ids=lambda cls: cls.name)
def small(request: pytest.FixtureRequest) -> Environment:
    return request.param()


async def test_gold__is_accepted_in_both_splits(environment: Any, isolated: Pool) -> None:
    for split in ("train", "heldout"):
        for task in environment.tasks(split, 3, 4):
            played = await said(environment, task, environment.gold(task), isolated)
            assert played.reward is not None
            assert (played.reward.value, played.reward.success) == (1.0, True), (task, played.entries)


async def test_gold__is_accepted_by_a_reward_worker_too(environment: Any, isolated: Pool) -> None:
    queue = queue_for(isolated)
    for split in ("train", "heldout"):
        for task in environment.tasks(split, 3, 2):
            turns = environment.gold(task)
            played = await act(environment, task, lambda episode, turns=turns: turns[episode.n_turns], queue, 5)
            evidence = pack(environment.name, played.episode)
            episode = unpack(evidence, Task(task.id, json.loads(json.dumps(task.payload)), split), 5, played.termination)
            async with boxes_of(environment, task, queue, grading=True) as boxes:
                reward = await grade(environment, episode, boxes.main, boxes.others)
            assert (reward.value, reward.success) == (1.0, True), task


@pytest.mark.parametrize("text", ["done", "", "I am sure that it is right.", "0", "\\boxed{}", "Answer: yes"])
async def test_saying_something_without_doing_anything__earns_nothing(environment: Any, text: str, isolated: Pool) -> None:
    for task in environment.tasks("heldout", 4, 2):
        played = await said(environment, task, [text], isolated)
        assert played.reward is not None
        assert (played.reward.value, played.reward.success) == (0.0, False), task


async def test_verdict__is_the_same_over_repeats(environment: Any, isolated: Pool) -> None:
    (task,) = environment.tasks("train", 5, 1)
    rewards = [(await said(environment, task, environment.gold(task), isolated)).reward for _ in range(3)]
    assert len({(reward.value, reward.success) for reward in rewards if reward}) == 1


def test_tasks__depend_on_split_and_seed_alone(environment: Any) -> None:
    first = checked_tasks(environment, "train", 1, 60)
    again = type(environment)()
    assert checked_tasks(again, "train", 1, 60) == first
    assert checked_tasks(again, "train", 1, 30) == first[:30]
    if len(first) > 10:
        assert checked_tasks(again, "train", 2, 60) != first


def test_tasks__are_the_same_in_another_process_with_another_hash_seed() -> None:
    names = [cls.name for cls in (*SMALL, *LARGE)]
    program = (
        "import json, sys; from agentrl.environment.registry import load\n"
        "targets = json.load(sys.stdin)\n"
        "print(json.dumps([[[t.id, dict(t.payload)] for t in load(name).tasks('heldout', 1, 20)] for name in targets]))"
    )
    targets = [f"{cls.__module__}:{cls.__name__}" for cls in (*SMALL, *LARGE)]
    out = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(targets).encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
    ).stdout
    for name, target, theirs in zip(names, targets, json.loads(out), strict=True):
        ours = [[task.id, dict(task.payload)] for task in load(target).tasks("heldout", 1, 20)]
        assert json.loads(json.dumps(ours)) == theirs, name


def test_splits__share_no_question(environment: Any) -> None:
    train, heldout = ({question(task) for task in checked_tasks(environment, split, 7, 500)} for split in ("train", "heldout"))
    assert train
    assert heldout
    assert train.isdisjoint(heldout)


def test_another_split__is_refused(environment: Any) -> None:
    with pytest.raises(ValueError, match="train and heldout"):
        environment.tasks("test", 0, 1)


def test_prompt__shows_no_answer(small: Any) -> None:
    def shown(task: Task) -> str:
        return " ".join(message.content for message in small.messages(task))

    for task in small.tasks("train", 1, 300):
        answer = small.gold(task)[-1]
        if small.name in ("search_agent", "qa_verify"):
            assert answer not in shown(task)
        assert json.dumps(task.payload) not in shown(task)


async def test_teacher__is_right_often_enough_and_not_too_often(small: Any, isolated: Pool) -> None:
    played = await collect(small, 1, 60, isolated, concurrency=2)
    success = sum(bool(one.reward and one.reward.success) for one in played) / len(played)
    assert 0.35 < success < 0.85


async def test_demonstrations__alternate_and_end_by_themselves_mostly(small: Any, isolated: Pool) -> None:
    played = await collect(small, 2, 20, isolated, concurrency=2)
    for one in played:
        assert isinstance(one.entries[0], Message)
        assert all(isinstance(a, str) != isinstance(b, str) for a, b in pairwise(one.entries))


@pytest.mark.parametrize("cls", LARGE, ids=lambda cls: cls.name)
def test_large_size__is_not_for_a_model_from_scratch(cls: Callable[[], Environment]) -> None:
    assert not cls().can_demonstrate


def test_page_of_environments__names_them_all_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    shipped = {name for name, target in installed().items() if target.startswith("environments.")}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == shipped
    for cls in SMALL:
        tools = ", ".join(f"`{tool}`" for tool in cls.tools) or "none"
        has_sandbox = "yes" if cls.sandbox else "no"
        assert re.search(rf"^\| `{cls.name}` \|[^|]*\| {tools} \| {has_sandbox} \|", page, re.MULTILINE), cls.name


def test_every_environment__has_a_name_of_its_own() -> None:
    for cls in (*SMALL, *LARGE):
        assert installed()[cls.name] == f"{cls.__module__}:{cls.__name__}"
    assert NEEDS_A_FILE in installed()


@pytest.mark.parametrize("cls", [*SMALL, *LARGE], ids=lambda cls: cls.name)
def test_many_tasks__have_ids_of_their_own(cls: Callable[[], Any]) -> None:
    tasks = cls().tasks("train", 0, 2000)
    assert len({task.id for task in tasks}) == len(tasks)
