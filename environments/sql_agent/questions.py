"""Small generated questions about one table of sales: an aggregate under one or two conditions.

Of all combinations of an aggregate with two conditions a fifth is held out: neither demonstrations nor training contain them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import lru_cache

from agentrl.environment import Task
from environments.splits import heldout_fifth
from environments.sql_agent import database

PEOPLE = ("Ada", "Bo", "Cleo", "Dan", "Eva")
GOODS = ("tea", "rice", "salt", "wool", "iron")
AGGREGATES = {
    "count": ("How many sales are there", "count(*)"),
    "sum": ("What is the total", "sum(n)"),
    "max": ("What is the largest sale", "max(n)"),
    "min": ("What is the smallest sale", "min(n)"),
    "goods": ("How many different goods are there", "count(distinct what)"),
    "people": ("How many different people are there", "count(distinct who)"),
}
"""Name -> words, SQL."""
CONDITIONS = {
    "who": (" by V", "who='V'"),
    "what": (" of V", "what='V'"),
    "above": (" above V", "n>V"),
    "below": (" below V", "n<V"),
}
PAIRS = (("who", "what"), ("who", "above"), ("who", "below"), ("what", "above"), ("what", "below"))
HELDOUT = heldout_fifth((aggregate, *pair) for aggregate in AGGREGATES for pair in PAIRS)
N_ROWS = 12
_SCRIPT = "CREATE TABLE sale(who TEXT, what TEXT, n INTEGER);"


@lru_cache(maxsize=256)
def data(seed: str) -> bytes:
    """The database of a seed."""
    rng = random.Random(f"sql_agent/{seed}")
    rows = [(rng.choice(PEOPLE), rng.choice(GOODS), rng.randint(1, 9)) for _ in range(N_ROWS)]
    return database.make(_SCRIPT, {"sale": rows})


def sql(aggregate: str, conditions: list[tuple[str, str]]) -> str:
    """The query of an aggregate under (condition, value) pairs."""
    where = " and ".join(CONDITIONS[name][1].replace("V", value) for name, value in conditions)
    return f"select {AGGREGATES[aggregate][1]} from sale where {where}"


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks without end. ``train``: one or two conditions, no held-out combination; ``heldout``: held-out ones only."""
    rng = random.Random(f"sql_agent/{split}/{seed}")
    for index in itertools.count():
        yield _task(rng, split, index, f"{split}/{seed}/{index}")


def conditions_of(task: Task) -> list[tuple[str, str]]:
    """The conditions of a task, as stored in its payload."""
    return [(name, value) for name, value in task.payload["conditions"]]


def _task(rng: random.Random, split: str, index: int, seed: str) -> Task:
    while True:
        aggregate, conditions = _draw(rng, split)
        query = sql(aggregate, conditions)
        ((answer,),) = database.gold(data(seed), query)
        if answer:  # neither nothing to aggregate nor a count of zero: an agent must not be right by a failed query
            break
    words = AGGREGATES[aggregate][0] + "".join(CONDITIONS[name][0].replace("V", value) for name, value in conditions)
    payload = {
        "question": f"{words}?",
        "aggregate": aggregate,
        "conditions": [list(condition) for condition in conditions],
        "query": query,
        "database": seed,
        "rows": [[answer]],
    }
    label = "+".join(f"{name}-{value}" for name, value in conditions)
    return Task(f"{aggregate}/{label}/{index:04}", payload, split)


def _draw(rng: random.Random, split: str) -> tuple[str, list[tuple[str, str]]]:
    values = {
        "who": rng.choice(PEOPLE),
        "what": rng.choice(GOODS),
        "above": str(rng.randint(1, 6)),
        "below": str(rng.randint(4, 9)),
    }
    while True:
        aggregate, names = rng.choice(list(AGGREGATES)), rng.choice(PAIRS)
        if split == "train" and rng.random() < 0.5:
            names = (rng.choice(names),)  # type: ignore[assignment]
        if len(names) == 1 or ((aggregate, *names) in HELDOUT) == (split == "heldout"):
            return aggregate, [(name, values[name]) for name in names]
