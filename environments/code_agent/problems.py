"""Tasks from files with rows as HumanEval or MBPP have them, read as they are."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.environment import Task
from agentrl.environment.sources import Row, rows_of_split
from agentrl.errors import UsageError

HUMANEVAL = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
MBPP = ("task_id", "code", "test_list")


def read(data: Path, split: str, n: int) -> Iterator[Task]:
    """The first ``n`` tasks of ``split``. `UsageError` for a file that can't be opened at once, for a bad row when it comes."""
    rows = itertools.islice(rows_of_split(data, split, lambda row: _id(data, row)), n)
    return (Task(_id(data, row), _payload(data, row), split) for row in rows)


def prompt(payload: Any) -> str:
    """What the agent is told."""
    shown = "".join(f"\n{test}" for test in payload["shown"])
    tests = f"\n\nIt has to pass tests like:{shown}" if shown else ""
    return (
        f"Write the Python function {payload['function']}.\n\n{payload['text']}{tests}\n\n"
        'Run your whole code with the python tool. When it is right, answer exactly "done": the last code you ran is handed in.'
    )


def _id(data: Path, row: Row) -> str:
    if all(key in row for key in HUMANEVAL):
        return str(row["task_id"])
    if all(key in row for key in MBPP) and ("text" in row or "prompt" in row):
        return f"MBPP/{row['task_id']}"
    raise UsageError(
        f"A row of {data} is shaped neither like HumanEval ({', '.join(HUMANEVAL)}) nor like MBPP ({', '.join(MBPP)}, text or "
        f"prompt): it has {', '.join(row) or 'no columns'}."
    )


def _payload(data: Path, row: Row) -> dict[str, Any]:
    try:
        return _humaneval(row) if "canonical_solution" in row else _mbpp(row)
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{data}, task {_id(data, row)}: its code can't be read: {error}") from error


def _humaneval(row: Row) -> dict[str, Any]:
    function, solution = row["entry_point"], row["prompt"] + row["canonical_solution"]
    tests = f"{row['test']}\ncheck({function})\n"
    return _checked(row["prompt"], function, solution, _before(solution, function), tests, [])


def _mbpp(row: Row) -> dict[str, Any]:
    tests = [*row["test_list"], *row.get("challenge_test_list", ())]
    setup = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code") or ""]).strip()
    defined = [node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)]
    called = {node.id for test in tests for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)}
    function = next((name for name in defined if name in called), None)
    if function is None:
        raise ValueError("its tests call no function that its code defines")
    text = row["prompt"] if "prompt" in row else row["text"]
    return _checked(text, function, row["code"], setup, "\n".join([setup, *tests]), list(row["test_list"][:1]))


def _before(source: str, function: str) -> str:
    """What stands before a function: imports and functions that both solutions and tests may use."""
    body = ast.parse(source).body
    for index, node in enumerate(body):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return "\n".join(ast.unparse(earlier) for earlier in body[:index])
    raise ValueError(f"it does not define {function}")


def _checked(text: str, function: str, solution: str, preamble: str, tests: str, shown: list[str]) -> dict[str, Any]:
    for source in (solution, preamble, tests, *shown):
        ast.parse(source)
    return {
        "file": "problem.txt",
        "text": text,
        "function": function,
        "preamble": preamble,
        "tests": tests,
        "shown": shown,
        "solution": solution,
    }
