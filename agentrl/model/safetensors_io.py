"""HF-named tensors to and from safetensors files: written whole or not at all, with a checksum, never over a file."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agentrl.errors import WeightsCorrupt
from agentrl.monitor.stopwatch import Stopwatch

Shapes = dict[str, tuple[int, ...]]


def write_tensors(tensors: Iterable[tuple[str, torch.Tensor]], path: Path, watch: Stopwatch | None = None) -> str:
    """Write a new file and return its checksum, ``sha256:<hex>``. ``watch`` gets the seconds of "write" and "checksum".

    The file appears under its name only when all its bytes are on disk. `FileExistsError` when the name is taken.
    """
    named: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if name in named:
            raise ValueError(f"{path}: the tensor {name} was given twice")
        named[name] = tensor.detach().cpu().contiguous()
    watch = watch or Stopwatch()
    with watch.phase("write"), _new_file(path) as part:
        part.touch(exist_ok=False)
        rights = part.stat().st_mode  # others than the owner may have to read it, which `save_file` does not allow
        save_file(named, part, metadata={"format": "pt"})  # straight from the tensors: no copy of all weights in memory
        part.chmod(rights)
    with watch.phase("checksum"):
        return checksum(path)


def write_new(path: Path, data: bytes) -> None:
    """A new file that appears under its name only when all its bytes are on disk. `FileExistsError` when the name is taken."""
    with _new_file(path) as part:
        part.write_bytes(data)


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of a file, on the CPU. `WeightsCorrupt` when it can't be read."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise WeightsCorrupt(f"{path}: can't read tensors: {error}") from error


def checksum(path: Path) -> str:
    """``sha256:<hex>`` of a file's bytes."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def read_shapes(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name to (dtype as safetensors spells it, shape) from the header alone. `WeightsCorrupt` when it can't be read."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, os.fstat(file.fileno()).st_size)))
        return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsCorrupt(f"{path}: not a safetensors file: {error}") from error


def require_shapes(found: Shapes, expected: Shapes, source: str) -> None:
    """`WeightsCorrupt` that names the first differences when names or shapes are not exactly the expected ones."""
    problems = [f"missing {name}" for name in expected if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in expected]
    problems += [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise WeightsCorrupt(f"{source}: {'; '.join(problems[:5])}{more}")


def require_same_layout(path: Path, reference: Path) -> None:
    """`WeightsCorrupt` unless both files hold the same names with the same shapes and dtypes."""
    found, expected = read_shapes(path), read_shapes(reference)
    require_shapes({n: s for n, (_, s) in found.items()}, {n: s for n, (_, s) in expected.items()}, str(path))
    for name, (dtype, _) in expected.items():
        if found[name][0] != dtype:
            raise WeightsCorrupt(f"{path}: {name} is {found[name][0]}, in {reference} it is {dtype}")


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A name to write to, whose file appears as ``path`` when all its bytes are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        yield part
        sync(part)
        os.link(part, path)  # unlike rename, link fails when the name exists
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """A file's bytes, or a folder's names, are on disk afterwards."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
