"""A model's weights in a folder as Hugging Face lays them out: one safetensors file, or parts with an index beside them.

Weights are named by their file or by their index. The index that is written here carries a checksum of each part, so that its
own checksum stands for all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import checksum, read_tensors, sync, write_new, write_tensors
from agentrl.monitor.stopwatch import Stopwatch

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
"""Largest file, unless one tensor alone is larger."""


def write_weights(
    tensors: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    *,
    max_bytes: int = MAX_SHARD_BYTES,
    watch: Stopwatch | None = None,
) -> tuple[Path, str]:
    """Write (HF name, tensor) pairs into ``folder``; returns the file, or the index of several parts, and its checksum.

    No more than one part is in memory beside what ``tensors`` holds. The file or index appears last: without it there are no
    weights. `FileExistsError` when there are some already. ``watch`` gets the seconds of "write" and "checksum".
    """
    for taken in (folder / WEIGHTS, folder / INDEX):
        if taken.exists():
            raise FileExistsError(f"{taken} exists: weights are never overwritten")
    unnamed: list[tuple[Path, str, list[str]]] = []
    total = 0
    try:
        for shard in _shards(tensors, max_bytes):
            path = folder / f".{uuid4().hex}.part"
            digest = write_tensors(shard.items(), path, watch)
            total += sum(tensor.nbytes for tensor in shard.values())
            unnamed.append((path, digest, list(shard)))
        if len(unnamed) == 1:
            (path, digest, _) = unnamed[0]
            os.link(path, folder / WEIGHTS)
            return folder / WEIGHTS, digest
        return _name_parts(folder, unnamed, total)
    finally:
        for path, _, _ in unnamed:
            path.unlink()
        if unnamed:
            sync(folder)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder, one or the parts that its index names. `UsageError` when one is missing."""
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if not (folder / INDEX).is_file():
        raise UsageError(f"{folder}: the model directory has no weights; expected {WEIGHTS} or {INDEX} with its parts")
    try:
        return parts(folder / INDEX)
    except WeightsCorrupt as error:
        raise UsageError(str(error)) from error


def parts(path: Path) -> tuple[Path, ...]:
    """The safetensors files behind a file or an index. `WeightsCorrupt` when it is no index or one of its files is missing."""
    if path.name != INDEX:
        return (path,)
    names = sorted(set(_read_index(path)["weight_map"].values()))
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise WeightsCorrupt(f"{path.parent}: weights are missing: {', '.join(missing)}")
    return tuple(path.parent / name for name in names)


def verified(path: Path, expected: str) -> tuple[Path, ...]:
    """The files behind a file or an index that `write_weights` wrote. `WeightsCorrupt` unless all are there and unchanged."""
    _verify(path, expected)
    if path.name != INDEX:
        return (path,)
    files = parts(path)
    sums: dict[str, str] = _read_index(path).get("metadata", {}).get("checksums", {})
    for file in files:
        _verify(file, sums.get(file.name, "(none in the index)"))
    return files


def model_tensors(files: Iterable[Path], config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in ``files`` by HF name; a stored copy of tied embeddings is left out."""
    for file in files:
        for name, tensor in read_tensors(file):
            if not (config.tie_embeddings and name == "lm_head.weight"):
                yield name, tensor


def _shards(tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    seen: set[str] = set()
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if name in seen:
            raise ValueError(f"the tensor {name} was given twice")
        seen.add(name)
        if shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _name_parts(folder: Path, unnamed: list[tuple[Path, str, list[str]]], total: int) -> tuple[Path, str]:
    checksums: dict[str, str] = {}
    weight_map: dict[str, str] = {}
    for number, (path, digest, names) in enumerate(unnamed, start=1):
        part = f"model-{number:05}-of-{len(unnamed):05}.safetensors"
        os.link(path, folder / part)
        checksums[part] = digest
        weight_map |= dict.fromkeys(names, part)
    index = {"metadata": {"total_size": total, "checksums": checksums}, "weight_map": weight_map}
    sync(folder)
    write_new(folder / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    return folder / INDEX, checksum(folder / INDEX)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
        outside = [name for name in index["weight_map"].values() if Path(name).name != name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsCorrupt(f"{path}: not an index of weights: {error!r}") from error
    if outside:
        raise WeightsCorrupt(f"{path}: names a file outside of its folder: {outside[0]}")
    return index


def _verify(path: Path, expected: str) -> None:
    try:
        found = checksum(path)
    except OSError as error:
        raise WeightsCorrupt(f"{path}: can't read the weights: {error}") from error
    if found != expected:
        raise WeightsCorrupt(f"{path}: checksum {found}, expected {expected}; the file was damaged or replaced")
