"""Values as a page shows them. What a model or a tool wrote is data: it is shown, it never acts on the browser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from agentrl.monitor.terminal import visible

LONGEST = 20_000
"""Characters of one text on a page; the rest is a download."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The beginning of a text, and how many characters were left out."""

    text: str
    lines: int
    """Of the whole text."""
    more: int


def shown(text: str) -> Shown:
    """Its first `LONGEST` characters."""
    return Shown(text[:LONGEST], text.count("\n") + 1 if text else 0, max(0, len(text) - LONGEST))


def cell(value: Any) -> Any:
    """What a template prints for a value. Texts keep their lines and tabs; other control characters become escapes."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    if isinstance(value, str):
        return "\n".join("\t".join(map(visible, line.split("\t"))) for line in value.split("\n"))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 10**18):
        return _number(value)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return value


def _number(value: float) -> str:
    try:
        number = float(value)
    except OverflowError:
        return "more than 1e308"
    if not math.isfinite(number):
        return str(number)
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
