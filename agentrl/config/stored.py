"""The configuration as a run's row keeps it: every process of a run reads it from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.errors import UsageError


def to_row(config: RunConfig, folder: Path) -> dict[str, Any]:
    """``{"settings": ..., "folder": ...}``; the folder is not part of the configuration's hash."""
    return {"settings": config.model_dump(mode="json"), "folder": str(folder)}


def from_row(row: Mapping[str, Any]) -> tuple[RunConfig, Path]:
    """Settings and run folder. `UsageError` when another version of the library wrote settings this one does not know."""
    try:
        return RunConfig.model_validate(row["settings"]), Path(row["folder"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"This run was created by another version of agentrl: {error}") from None


def model_folder(config: RunConfig, folder: Path) -> Path:
    """Where the run's model and tokenizer lie: the one it was given, or the one made in the run folder."""
    return Path(config.model.path) if config.model.path else folder / "model"
