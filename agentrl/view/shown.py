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
    more: int = 0

    @property
    def lines(self) -> int:
        return self.text.count("\n") + 1


def shown(text: str) -> Shown:
    """Its first `LONGEST` characters."""
    return Shown(text[:LONGEST], max(0, len(text) - LONGEST))


def cell(value: Any) -> Any:
    """What a template prints for a value. Texts keep their lines and tabs; other control characters become escapes."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    if isinstance(value, str):
        return "\n".join("\t".join(visible(part) for part in line.split("\t")) for line in value.split("\n"))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return value
