"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(word: str, known: Sequence[str]) -> str:
    """``" Did you mean 'X'?"`` or nothing."""
    match = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean '{match[0]}'?" if match else ""
