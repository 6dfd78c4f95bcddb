"""Weights as files: written whole, checksummed, never overwritten; verified before anyone trusts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.model.weight_files import MAX_SHARD_BYTES, parts, verified, write_weights
from agentrl.monitor.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """``uri``: an absolute local path, of one file or of the index of several; ``checksum``: ``sha256:<hex>`` of that;
    ``n_bytes``: of all files of tensors."""

    uri: str
    checksum: str
    n_bytes: int


def export_weights(
    tensors: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    *,
    max_bytes: int = MAX_SHARD_BYTES,
    watch: Stopwatch | None = None,
) -> WeightsFile:
    """Write (HF name, tensor) pairs to ``folder``: one file, or several with an index when there are more than ``max_bytes``.

    `FileExistsError` when there are weights already: name the folder by branch, fence and version, so that there never are.
    """
    path, digest = write_weights(tensors, Path(folder).resolve(), max_bytes=max_bytes, watch=watch)
    return WeightsFile(str(path), digest, sum(part.stat().st_size for part in parts(path)))


def verify(uri: str, expected: str) -> None:
    """`WeightsCorrupt` unless the weights at ``uri`` are all there and have the checksum ``expected``."""
    verified(Path(uri), expected)
