"""Old checkpoints go when a newer one is committed.

Invariants
- needed_stays: the newest ones on the live history stay; a resume takes the newest of them that is whole.
- row_before_file: a checkpoint is marked as removed before its files go, so that no start is sent to files that are not there.
- only_older_files: what goes was there before the store checked the fence, so it is nothing that a newer trainer writes.
- only_checkpoints: what has not the name of a checkpoint is somebody else's and stays.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from agentrl.store.contract import TrajectoryStore

_NAME = re.compile(r"b\d+-f\d+-s\d+")


def checkpoints_folder(run_folder: Path) -> Path:
    """All checkpoints of a run."""
    return run_folder / "checkpoints"


def checkpoint_folder(run_folder: Path, *, branch: int, fence: int, step: int) -> Path:
    """One checkpoint: no two trainers give the same."""
    return checkpoints_folder(run_folder) / f"b{branch}-f{fence}-s{step}"


def remove_old_checkpoints(store: TrajectoryStore, run: int, fence: int, folder: Path, *, keep: int) -> list[Path]:
    """Remove all but the ``keep`` newest checkpoints from ``folder``, and what trainers that died left half-written there.

    Call it while nothing is being written. Returns what was removed.
    """
    there = [path for path in folder.glob("*") if _NAME.fullmatch(path.name)]
    stay = {Path(uri).name for uri in store.retire_checkpoints(run, fence, keep=keep)}
    gone = [path for path in there if path.name not in stay]
    for path in gone:
        shutil.rmtree(path)
    return gone
