"""Old checkpoints go when a newer one is committed.

Invariants
- needed_stays: the newest ones on the live history stay; a resume takes the newest of them that is whole.
- row_before_file: a checkpoint is marked as removed before its files go, so that no start is sent to files that are not there.
- only_older_files: what goes was there before the store checked the fence, so it is nothing that a newer trainer writes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from agentrl.store.contract import TrajectoryStore


def remove_old_checkpoints(store: TrajectoryStore, run: int, fence: int, folder: Path, *, keep: int) -> list[Path]:
    """Remove all but the ``keep`` newest checkpoints from ``folder``, and what trainers that died left half-written there.

    Call it while nothing is being written. Returns what was removed.
    """
    there = list(folder.iterdir())
    stay = {Path(uri).name for uri in store.retire_checkpoints(run, fence, keep=keep, folder=str(folder))}
    gone = [path for path in there if path.name not in stay]
    for path in gone:
        shutil.rmtree(path)
    return gone
