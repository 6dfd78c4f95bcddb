"""Tasks that can't be rows are refused with the environment's name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.environment import Environment, Task
from agentrl.environment.base import checked_tasks
from agentrl.errors import EnvironmentFault


class Given(Environment):
    def __init__(self, *tasks: Any) -> None:
        self.given = list(tasks)

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return self.given


@pytest.mark.parametrize(
    "payload", [{"a": "x\0y"}, {"a": "\ud800"}, {"a": object()}, {"a": float("nan")}, [1], {"a": {"b": ["\0"]}}, {"\0": 1}]
)
def test_payload__json_values_without_nul_or_surrogates(payload: Any) -> None:
    with pytest.raises(EnvironmentFault, match="can't be stored"):
        checked_tasks(Given(Task("t", payload)), "train", 0, 1)


def test_id__without_surrogates() -> None:
    with pytest.raises(EnvironmentFault, match="can't be stored"):
        checked_tasks(Given(Task("t\ud800", {})), "train", 0, 1)


def test_odd_but_storable_text__passes() -> None:
    tasks = [Task("ü \\u0000", {"code": "'\\u0000'", "n": [1, None, True, 1e300], "emoji": "🙂"})]
    assert checked_tasks(Given(*tasks), "train", 0, 1) == tasks


def test_no_task__is_a_fault_that_a_restart_cannot_help() -> None:
    with pytest.raises(EnvironmentFault, match="no task") as error:
        checked_tasks(Given(), "train", 0, 1)
    assert error.value.exit_code == 2


def test_tasks_without_end__are_taken_up_to_n() -> None:
    class Endless(Environment):
        def tasks(self, split: str, seed: int, n: int) -> Iterator[Task]:
            return (Task(f"{index}", {}, split) for index in itertools.count())

    assert [task.id for task in checked_tasks(Endless(), "train", 0, 3)] == ["0", "1", "2"]
