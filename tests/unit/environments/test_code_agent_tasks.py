"""Tasks of code_agent: stable, disjoint splits, right answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from agentrl.environment.base import checked_tasks
from agentrl.types import Task
from environments.code_agent import CodeAgent
from environments.code_agent.tasks import BY_NAME, HELDOUT_PAIRS, OPERATIONS, solution, steps_of


def pair(task: Task) -> tuple[str, ...]:
    return tuple(name for name, _, _ in steps_of(task))


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return checked_tasks(CodeAgent(), "train", 1, 3000)


@pytest.fixture(scope="module")
def heldout() -> list[Task]:
    return checked_tasks(CodeAgent(), "heldout", 1, 1000)


def test_heldout_pairs__are_a_fifth_and_leave_each_operation_to_train_on() -> None:
    assert len(HELDOUT_PAIRS) == 29  # of 144
    for operation in OPERATIONS:
        for place in (0, 1):
            assert sum(names[place] == operation.name for names in HELDOUT_PAIRS) <= len(OPERATIONS) / 2


def test_splits__share_no_pair_and_no_task(train: list[Task], heldout: list[Task]) -> None:
    assert {pair(task) for task in heldout} == HELDOUT_PAIRS
    assert {pair(task) for task in train}.isdisjoint(HELDOUT_PAIRS)
    assert {task.id for task in train}.isdisjoint(task.id for task in heldout)


def test_train_split__is_half_one_step_and_half_two(train: list[Task]) -> None:
    lengths = Counter(len(steps_of(task)) for task in train)
    assert set(lengths) == {1, 2}
    assert 0.45 < lengths[1] / len(train) < 0.55


def test_tasks__depend_on_split_and_seed_alone(train: list[Task]) -> None:
    assert checked_tasks(CodeAgent(), "train", 1, 100) == train[:100]
    assert checked_tasks(CodeAgent(), "train", 2, 100) != train[:100]


def test_tasks__are_the_same_in_another_process_with_another_hash_seed(train: list[Task]) -> None:
    program = (
        "import json; from environments.code_agent import CodeAgent;"
        "print(json.dumps([[t.id, t.payload] for t in CodeAgent().tasks('train', 1, 50)]))"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "12345"}
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environ).stdout
    assert json.loads(out) == [[task.id, dict(task.payload)] for task in train[:50]]


def test_task_ids__are_readable(train: list[Task]) -> None:
    task = next(task for task in train if pair(task) == ("sort-desc", "add"))
    digit = steps_of(task)[1][1]
    index = train.index(task)
    assert task.id == f"sort-desc+add-{digit}/{task.payload['file']}/{task.payload['function']}/{index:04}"


def test_gold_solution__gives_the_expected_outputs(train: list[Task], heldout: list[Task]) -> None:
    for task in [*train[:300], *heldout[:300]]:
        space: dict[str, object] = {}
        exec(solution(task.payload["function"], steps_of(task)), space)
        function = space[task.payload["function"]]
        assert callable(function)
        assert [function(given) for given in task.payload["inputs"]] == task.payload["expected"]


def test_payload__is_json_and_text_names_the_steps(train: list[Task]) -> None:
    for task in train[:100]:
        assert json.loads(json.dumps(dict(task.payload))) == task.payload
        words = [BY_NAME[name].phrasings[p].replace("K", str(digit)) for name, digit, p in steps_of(task)]
        assert task.payload["text"] == ", then ".join(words)


def test_prompt__holds_neither_solution_nor_instruction(train: list[Task]) -> None:
    for task in train[:100]:
        (message,) = CodeAgent().messages(task)
        assert message.role == "user"
        assert message.content == f"Implement {task.payload['function']}(x) as {task.payload['file']} says."
