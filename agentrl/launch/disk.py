"""Where runs are written, and how much room is left there."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import NotReadyError

LITTLE_GB = 5.0
"""A run keeps weights, checkpoints, logs and rows; with less than this it is worth a look before it starts."""


@dataclass(frozen=True, slots=True)
class Space:
    """Free bytes of the file system of a folder that may not exist yet."""

    folder: Path
    free: int

    @property
    def little(self) -> bool:
        return self.free < LITTLE_GB * 1e9

    def __str__(self) -> str:
        note = f" (note: less than {LITTLE_GB:g} GB)" if self.little else ""
        return f"{self.free / 1e9:.1f} GB free for {self.folder}{note}"


def runs_folder() -> Path:
    """``$AGENTRL_RUNS`` or ./runs."""
    return Path(os.environ.get("AGENTRL_RUNS", "runs")).absolute()


def free_space(folder: Path) -> Space:
    """Room for ``folder``. `NotReadyError` when it could not be made or written."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise NotReadyError(f"{folder} can't be written: {there} is {'read-only' if there.is_dir() else 'no folder'}.")
    return Space(folder, shutil.disk_usage(there).free)
