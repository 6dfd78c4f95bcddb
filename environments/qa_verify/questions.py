"""Small generated questions about a few digits, each with one right answer.

A question is held out by a hash of its text, so no question is in both splits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentrl.environment import Task
from agentrl.environment.sources import is_heldout
from environments.splits import HELDOUT_SHARE

N_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked about the digits, in two phrasings, and how it is answered."""

    name: str
    phrasings: tuple[str, str]
    answer: Callable[[list[int]], list[int]]


KINDS = (
    Kind("largest", ("largest of", "greatest among"), lambda d: [max(d)]),
    Kind("smallest", ("smallest of", "least among"), lambda d: [min(d)]),
    Kind("first", ("first of", "start of"), lambda d: d[:1]),
    Kind("last", ("last of", "end of"), lambda d: d[-1:]),
    Kind("ascending", ("sort up", "order from small to large"), sorted),
    Kind("descending", ("sort down", "order from large to small"), lambda d: sorted(d, reverse=True)),
    Kind("reverse", ("reverse", "read backwards"), lambda d: d[::-1]),
    Kind("ends", ("outer two of", "first and last of"), lambda d: [d[0], d[-1]]),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks of ``split`` without end, drawn with repetition; the digits of a question are distinct."""
    rng = random.Random(f"qa_verify/{split}/{seed}")
    index = 0
    while True:
        kind, digits, phrasing = rng.choice(KINDS), rng.sample(range(1, 10), N_DIGITS), rng.randrange(2)
        key = f"{kind.name} {digits}"
        if is_heldout(key, HELDOUT_SHARE) == (split == "heldout"):
            payload = {
                "question": f"{kind.phrasings[phrasing]} {' '.join(map(str, digits))}",
                "answers": [answer(kind.name, digits)],
                "kind": kind.name,
                "digits": digits,
            }
            yield Task(f"{kind.name}/{''.join(map(str, digits))}/{index:05}", payload, split)
            index += 1


def answer(name: str, digits: list[int]) -> str:
    """The right answer to a kind of question."""
    return " ".join(map(str, BY_NAME[name].answer(digits)))
