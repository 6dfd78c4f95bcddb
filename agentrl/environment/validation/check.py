"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """``ok`` None: it could not be made, and ``detail`` says why; that is no failure."""

    name: str
    ok: bool | None
    detail: str
