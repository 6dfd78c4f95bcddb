"""A page as data: what a template shows, and what JSON at the same address gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import UsageError


class NotFound(UsageError):
    """No row has the name or id of the address."""


@dataclass(frozen=True, slots=True)
class Page:
    """``data`` is given as JSON too; ``extra`` only to the template. ``address``: where the same is shown later too."""

    template: str
    title: str
    data: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None


def whole_number(name: str, text: str) -> int:
    """A number of an address, from 0 on. `UsageError` for anything else."""
    if not re.fullmatch("[0-9]{1,15}", text, re.ASCII):
        raise UsageError(f"{name}={text[:40]} is no number from 0 on")
    return int(text)
