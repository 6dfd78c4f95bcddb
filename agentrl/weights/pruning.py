"""Weight files of past versions are removed, the oldest first, once they take more than their room.

Invariants, each a test of this name:
- needed_stays: what a living engine holds, an evaluation is pinned to, a checkpoint or a resume goes back to, and the newest
  versions stay, whatever room they take; the store says which these are (`TrajectoryStore.needed_weights`).
- row_before_file: a version is marked as removed before its file goes, so that nobody is sent to a file that is not there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from agentrl.model.weight_files import INDEX, WEIGHTS
from agentrl.store.contract import TrajectoryStore


@dataclass(frozen=True, slots=True)
class Pruning:
    """``folder`` holds a folder for each version's file; ``room`` in bytes; ``keep``: newest published versions that stay."""

    folder: Path
    room: int
    keep: int

    def prune(self, store: TrajectoryStore, run: int, fence: int) -> list[str]:
        """Remove files until the rest fits, or all others are needed; returns their uris. What no version names goes, too.

        Only folders: a file beside them is none of ours.
        """
        sizes = {path: _size(path) for path in self.folder.resolve().iterdir() if path.is_dir()}
        excess = sum(sizes.values()) - self.room
        if excess <= 0:
            return []
        needed = store.needed_weights(run, self.keep)
        picked: dict[str, Path] = {}
        for path in sorted(sizes, key=lambda path: path.stat().st_mtime_ns):
            uri = str(path / (INDEX if (path / INDEX).exists() else WEIGHTS))
            if excess > 0 and uri not in needed:
                picked[uri] = path
                excess -= sizes[path]
        free = store.retire_weights(run, fence, keep=self.keep, uris=list(picked)) if picked else set()
        removed = [uri for uri in picked if uri in free]
        for uri in removed:
            shutil.rmtree(picked[uri])
        return removed


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
