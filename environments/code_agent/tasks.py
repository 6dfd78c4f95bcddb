"""Generated tasks: one or two list operations, described in words in a file, to be written as a Python function.

Of all ordered pairs of operations a fifth is held out: neither demonstrations nor training contain them. Which fifth depends on
the names of the operations alone, so it is the same on every machine and in every run.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentrl.environment import Task

Step = tuple[str, int, int]
"""Name of the operation, its digit, which of its phrasings."""


@dataclass(frozen=True, slots=True)
class Operation:
    """``K`` in phrasings and code stands for a digit from 2 to 9."""

    name: str
    phrasings: tuple[str, str]
    code: str
    apply: Callable[[list[int], int], list[int]]


_WORDING = (
    ("add", "add K to each", "raise each by K", "x=[a+K for a in x]"),
    ("subtract", "subtract K from each", "lower each by K", "x=[a-K for a in x]"),
    ("multiply", "multiply each by K", "scale each by K", "x=[a*K for a in x]"),
    ("mod", "remainder of each mod K", "reduce each modulo K", "x=[a%K for a in x]"),
    ("divide", "divide each by K rounding down", "integer divide each by K", "x=[a//K for a in x]"),
    ("keep-above", "keep items above K", "drop items up to K", "x=[a for a in x if a>K]"),
    ("keep-below", "keep items below K", "drop items from K up", "x=[a for a in x if a<K]"),
    ("sort-asc", "sort ascending", "order small to large", "x=sorted(x)"),
    ("sort-desc", "sort descending", "order large to small", "x=sorted(x)[::-1]"),
    ("reverse", "reverse the list", "flip the order", "x=x[::-1]"),
    ("square", "square each", "raise each to power two", "x=[a*a for a in x]"),
    ("append", "append K", "put K at the end", "x=x+[K]"),
)
_MEANING: dict[str, Callable[[list[int], int], list[int]]] = {
    "add": lambda x, k: [a + k for a in x],
    "subtract": lambda x, k: [a - k for a in x],
    "multiply": lambda x, k: [a * k for a in x],
    "mod": lambda x, k: [a % k for a in x],
    "divide": lambda x, k: [a // k for a in x],
    "keep-above": lambda x, k: [a for a in x if a > k],
    "keep-below": lambda x, k: [a for a in x if a < k],
    "sort-asc": lambda x, k: sorted(x),
    "sort-desc": lambda x, k: sorted(x)[::-1],
    "reverse": lambda x, k: x[::-1],
    "square": lambda x, k: [a * a for a in x],
    "append": lambda x, k: [*x, k],
}
OPERATIONS = tuple(Operation(name, (one, other), code, _MEANING[name]) for name, one, other, code in _WORDING)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
FILES = ("task.txt", "spec.txt", "todo.md", "notes.md", "issue.md")
FUNCTIONS = ("f", "g", "solve", "run", "fix")
N_TESTS = 6
HELDOUT_SHARE = 0.2


def _heldout_pairs() -> frozenset[tuple[str, str]]:
    pairs = [(first.name, second.name) for first in OPERATIONS for second in OPERATIONS]
    ranked = sorted(pairs, key=lambda pair: hashlib.sha256("+".join(pair).encode()).digest())
    return frozenset(ranked[: round(HELDOUT_SHARE * len(pairs))])


HELDOUT_PAIRS = _heldout_pairs()


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks without end. ``train``: one or two steps, half and half, no held-out pair; ``heldout``: held-out pairs only."""
    rng = random.Random(f"code_agent/{split}/{seed}")
    index = 0
    while True:
        yield _task(rng, split, index)
        index += 1


def solution(function: str, steps: list[Step]) -> str:
    """The code of ``steps`` as one line of Python."""
    body = "; ".join(BY_NAME[name].code.replace("K", str(digit)) for name, digit, _ in steps)
    return f"def {function}(x): {body}; return x"


def steps_of(task: Task) -> list[Step]:
    """The steps of a task, as stored in its payload."""
    return [(name, digit, phrasing) for name, digit, phrasing in task.payload["steps"]]


def _task(rng: random.Random, split: str, index: int) -> Task:
    steps = _draw_steps(rng, split)
    file, function = rng.choice(FILES), rng.choice(FUNCTIONS)
    text = ", then ".join(BY_NAME[name].phrasings[p].replace("K", str(digit)) for name, digit, p in steps)
    inputs = [[rng.randint(0, 12) for _ in range(rng.randint(3, 4))] for _ in range(N_TESTS)]
    label = "+".join(f"{name}-{digit}" if "K" in BY_NAME[name].code else name for name, digit, _ in steps)
    payload = {
        "file": file,
        "function": function,
        "text": text,
        "steps": [list(step) for step in steps],
        "inputs": inputs,
        "expected": [_apply(steps, given) for given in inputs],
    }
    return Task(f"{label}/{file}/{function}/{index:04}", payload, split)


def _draw_steps(rng: random.Random, split: str) -> list[Step]:
    n_steps = 2 if split == "heldout" else rng.choice((1, 2))
    while True:
        steps = [(rng.choice(OPERATIONS).name, rng.randint(2, 9), rng.randrange(2)) for _ in range(n_steps)]
        names = tuple(name for name, _, _ in steps)
        if n_steps == 1 or (names in HELDOUT_PAIRS) == (split == "heldout"):
            return steps


def _apply(steps: list[Step], given: list[int]) -> list[int]:
    for name, digit, _ in steps:
        given = BY_NAME[name].apply(given, digit)
    return given
