"""Checkpoint files. A file is written whole, checksummed and never overwritten; it counts only once its row is committed."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import NotReadyError
from agentrl.store.contract import Checkpoint

FORMAT = 1


def write_checkpoint(folder: Path, state: dict[str, Any]) -> tuple[str, str]:
    """Write ``state`` to ``folder/state.pt``; returns (uri, sha256). The folder's name holds branch, fence and step."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    data = buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.pt"
    partial = folder / "state.pt.partial"
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        raise FileExistsError(f"{path} exists: a checkpoint file is never overwritten")
    partial.rename(path)
    return str(path), hashlib.sha256(data).hexdigest()


def verify_checkpoint(checkpoint: Checkpoint) -> bool:
    """The file is there and is the one whose checksum was committed."""
    try:
        return hashlib.sha256(Path(checkpoint.uri).read_bytes()).hexdigest() == checkpoint.checksum
    except OSError:
        return False


def read_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state of a verified checkpoint. `NotReadyError` for a format this version does not know."""
    state: dict[str, Any] = torch.load(checkpoint.uri, map_location="cpu", weights_only=True)
    if state.get("format") != FORMAT:
        raise NotReadyError(
            f"Checkpoint {checkpoint.uri} has format {state.get('format')}, this version reads {FORMAT}: "
            "resume with the version of agentrl that wrote it."
        )
    return state
