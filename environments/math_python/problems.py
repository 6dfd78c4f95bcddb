"""Small generated problems: start with a number, do one or two operations with it.

Of all ordered pairs of operations a fifth is held out: neither demonstrations nor training contain them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentrl.environment import Task
from environments.splits import heldout_fifth

Step = tuple[str, int, int]
"""Name of the operation, its digit, which of its phrasings."""


@dataclass(frozen=True, slots=True)
class Operation:
    """``K`` in phrasings and code stands for a digit from 2 to 9."""

    name: str
    phrasings: tuple[str, str]
    code: str
    apply: Callable[[int, int], int]


OPERATIONS = (
    Operation("add", ("add K", "raise it by K"), "x=x+K", lambda x, k: x + k),
    Operation("subtract", ("subtract K", "lower it by K"), "x=x-K", lambda x, k: x - k),
    Operation("multiply", ("multiply by K", "take it K times"), "x=x*K", lambda x, k: x * k),
    Operation("divide", ("divide by K rounding down", "count how often K fits"), "x=x//K", lambda x, k: x // k),
    Operation("modulo", ("keep the remainder by K", "reduce modulo K"), "x=x%K", lambda x, k: x % k),
    Operation("square", ("square it", "multiply it by itself"), "x=x*x", lambda x, k: x * x),
    Operation("negate", ("change the sign", "take the opposite"), "x=-x", lambda x, k: -x),
    Operation("at-least", ("raise it to K if it is less", "make it at least K"), "x=max(x,K)", lambda x, k: max(x, k)),
    Operation("at-most", ("cut it to K if it is more", "make it at most K"), "x=min(x,K)", lambda x, k: min(x, k)),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
HELDOUT_PAIRS = heldout_fifth((first.name, second.name) for first in OPERATIONS for second in OPERATIONS)


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks without end. ``train``: one or two operations, no held-out pair; ``heldout``: held-out pairs only."""
    rng = random.Random(f"math_python/{split}/{seed}")
    index = 0
    while True:
        yield _task(rng, split, index)
        index += 1


def program(start: int, steps: list[Step]) -> str:
    """Python that computes the steps, its last line being the result."""
    lines = [f"x={start}", *(BY_NAME[name].code.replace("K", str(digit)) for name, digit, _ in steps), "x"]
    return "; ".join(lines)


def steps_of(task: Task) -> list[Step]:
    """The steps of a task, as stored in its payload."""
    return [(name, digit, phrasing) for name, digit, phrasing in task.payload["steps"]]


def _task(rng: random.Random, split: str, index: int) -> Task:
    steps = _draw_steps(rng, split)
    start = rng.randint(2, 9)
    value = start
    for name, digit, _ in steps:
        value = BY_NAME[name].apply(value, digit)
    words = ", then ".join(BY_NAME[name].phrasings[p].replace("K", str(digit)) for name, digit, p in steps)
    label = "+".join(f"{name}-{digit}" if "K" in BY_NAME[name].code else name for name, digit, _ in steps)
    payload = {
        "problem": f"Start with {start}, {words}.",
        "answer": str(value),
        "start": start,
        "steps": [list(step) for step in steps],
    }
    return Task(f"{start}/{label}/{index:04}", payload, split)


def _draw_steps(rng: random.Random, split: str) -> list[Step]:
    n_steps = 2 if split == "heldout" else rng.choice((1, 2))
    while True:
        steps = [(rng.choice(OPERATIONS).name, rng.randint(2, 9), rng.randrange(2)) for _ in range(n_steps)]
        if n_steps == 1 or (tuple(name for name, _, _ in steps) in HELDOUT_PAIRS) == (split == "heldout"):
            return steps
