"""Weights as files: written whole, checksummed, never overwritten; verified before anyone trusts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.errors import WeightsCorrupt
from agentrl.model.model_dir import WEIGHTS
from agentrl.model.safetensors_io import checksum, write_tensors
from agentrl.monitor.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """``uri``: an absolute local path; ``checksum``: ``sha256:<hex>`` of the file."""

    uri: str
    checksum: str
    n_bytes: int


def export_weights(tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, watch: Stopwatch | None = None) -> WeightsFile:
    """Write ``folder/model.safetensors`` from (HF name, tensor) pairs. ``watch`` gets the seconds of "write" and "checksum".

    `FileExistsError` when it is there already: name the folder by branch, fence and version, so that it never is.
    """
    path = Path(folder).resolve() / WEIGHTS
    digest = write_tensors(tensors, path, watch)
    return WeightsFile(str(path), digest, path.stat().st_size)


def verify(uri: str, expected: str) -> None:
    """`WeightsCorrupt` unless the file at ``uri`` exists and has the checksum ``expected``."""
    try:
        found = checksum(Path(uri))
    except OSError as error:
        raise WeightsCorrupt(f"{uri}: can't read the weights: {error}") from error
    if found != expected:
        raise WeightsCorrupt(f"{uri}: checksum {found}, expected {expected}; the file was damaged or replaced")
