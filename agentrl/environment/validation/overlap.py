"""Tasks that are in training and held out: the same, or nearly so.

Near means a Jaccard index of at least `NEAR` between the sets of three consecutive words (Broder, "On the resemblance and
containment of documents", 1997). Words are runs of letters and digits, in lower case.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types import Task

NEAR = 0.8
_WORDS = 3
_COMMON = 200
"""Shingles in more training tasks than this are the wording of the environment, and suggest no pair by themselves."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Pairs of a training task's id and a held-out one's."""

    exact: tuple[tuple[str, str], ...]
    near: tuple[tuple[str, str], ...]


def overlap(train: Sequence[Task], heldout: Sequence[Task]) -> Overlap:
    """Compare the payloads of two splits, ids left out."""
    same = {tuple(_words(task)): task.id for task in reversed(train)}
    shingles = [_shingles(task) for task in train]
    holders: dict[str, list[int]] = defaultdict(list)
    for index, of_task in enumerate(shingles):
        for shingle in of_task:
            holders[shingle].append(index)
    exact, near = [], []
    for task in heldout:
        if (twin := same.get(tuple(_words(task)))) is not None:
            exact.append((twin, task.id))
            continue
        mine = _shingles(task)
        shared = Counter(index for s in mine for index in holders.get(s, ()) if len(holders[s]) <= _COMMON)
        for index in shared:
            other = shingles[index]
            if len(mine & other) >= NEAR * len(mine | other):
                near.append((train[index].id, task.id))
                break
    return Overlap(tuple(exact), tuple(near))


def _shingles(task: Task) -> frozenset[str]:
    words = _words(task)
    return frozenset(" ".join(words[i : i + _WORDS]) for i in range(max(1, len(words) - _WORDS + 1)))


def _words(task: Task) -> list[str]:
    return re.findall(r"\w+", " ".join(_values(task.payload)).lower())


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item)
    else:
        yield str(value)
