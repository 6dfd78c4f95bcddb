"""Compares the text of an answer with the rows of a result."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from environments.answers import MAX_ANSWER_CHARS, number, plain
from environments.sql_agent.database import Cell, Rows

TOLERANCE = Fraction(1, 10**6)
"""Relative; a float printed with six digits is still itself."""
NOTHING = ("none", "nothing", "no rows")
_SEPARATOR = re.compile(r"\n|;|\||,(?!\d{3}\b)|\band\b")


def same_rows(answer: str, rows: Rows, ordered: bool) -> bool:
    """Whether ``answer`` lists every cell of ``rows`` and no other: numbers by value, texts by their letters.

    That there is no row must be said, with a word of `NOTHING`: who says nothing knows nothing.
    """
    cells = [cell for row in rows for cell in row]
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    if not cells:
        return plain(answer) in NOTHING
    if len(cells) == 1:
        return _same(answer, cells[0])
    given = [part.strip() for part in _SEPARATOR.split(answer) if part.strip()]
    if len(given) != len(cells):
        return False
    if ordered:
        return all(_same(mine, right) for mine, right in zip(given, cells, strict=True))
    return Counter(map(_key, given)) == Counter(map(_key, map(str, cells)))


def _same(answer: str, cell: Cell) -> bool:
    if cell is None:
        return plain(answer) in ("null", "none")
    right = number(str(cell))
    if right is None:
        return bool(plain(answer)) and plain(answer) == plain(str(cell))
    given = number(answer)
    return given is not None and abs(given - right) <= TOLERANCE * abs(right)


def _key(text: str) -> str:
    value = number(text)
    return plain(text) if value is None else f"{float(value):.6g}"
