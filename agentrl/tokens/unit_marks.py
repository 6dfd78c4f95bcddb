"""From characters of a turn's text to its action tokens: where units of credit begin."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np


def unit_starts(decode: Callable[[list[int]], str], action: Sequence[int], places: Sequence[int]) -> np.ndarray:
    """uint8 [n_act], 1 on each token that holds a character at one of ``places`` of the whole action's decoded text.

    Place 0 is the first token, also of a turn without text. Two places in one token are one mark.
    """
    marks = np.zeros(len(action), np.uint8)
    tokens = list(action)
    for place in places:
        before = bisect.bisect_right(range(len(tokens)), place, key=lambda n: len(decode(tokens[: n + 1])))
        marks[min(before, len(tokens) - 1) if place else 0] = 1
    return marks
