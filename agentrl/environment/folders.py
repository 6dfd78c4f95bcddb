"""Environments of a folder that is not installed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import UsageError


def offered_by(folder: Path, group: str, name: str) -> list[str]:
    """``module:Class`` of each entry point in ``group`` that the folder's pyproject.toml declares."""
    file = folder / "pyproject.toml"
    try:
        declared = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"environment {name!r}: {file} can't be read: {error}") from None
    points = declared.get("project", {}).get("entry-points", {}).get(group, {})
    if not points:
        raise UsageError(f'environment {name!r}: {file} offers none: it has no [project.entry-points."{group}"]')
    return [str(target) for target in points.values()]


def the_only(candidates: Sequence[str], where: str, name: str) -> str:
    """The one candidate; `UsageError` for none, and for several, which it lists."""
    if len(candidates) == 1:
        return candidates[0]
    found = ", ".join(candidates) or "no environment"
    raise UsageError(f"environment {name!r}: {where} {found}: name the class after a colon, as in path/to/file.py:Class")
