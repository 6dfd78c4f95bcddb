"""Weights of a run as a model folder of their own: a policy for Hugging Face tools, SGLang and ``--model``, or a critic."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.errors import NotReadyError, UsageError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import read_shapes, require_shapes
from agentrl.model.weight_files import model_tensors, parts, verified, write_weights
from agentrl.types import Json, PolicyVersion

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
ORIGIN = "agentrl.json"
"""Where the weights of an exported folder come from."""
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    files: int
    """Files of weights."""
    n_bytes: int
    dtype: str


def export_model(
    model_dir: Path, version: PolicyVersion, target: Path, *, run: str, max_bytes: int, dtype: str | None = None
) -> Exported:
    """Write the files of ``model_dir`` with the weights of ``version`` to ``target``, which appears whole or not at all.

    ``dtype``: a name of `DTYPES`; None keeps what was published. `UsageError` when the target is in use, `NotReadyError` when
    the version's weights are no longer there, `WeightsCorrupt` when they are damaged or of another model.
    """
    require_unused(target)
    if not Path(version.uri).is_file():
        raise NotReadyError(
            f"The weights of version {version.version} of run {run} are gone: there is no {version.uri}. Name another version; "
            "`agentrl db query versions` lists them."
        )
    config = ModelConfig.read(model_dir)
    files = verified(Path(version.uri), version.checksum)
    chosen = DTYPES[dtype] if dtype else None
    found: dict[str, tuple[int, ...]] = {}
    kinds: set[torch.dtype] = set()

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in model_tensors(files, config):
            found[name] = tuple(tensor.shape)
            kinds.add(chosen or tensor.dtype)
            yield name, tensor.to(chosen or tensor.dtype)

    with _appearing(model_dir, target) as partial:
        path, _ = write_weights(tensors(), partial, max_bytes=max_bytes)
        require_shapes(found, config.tensor_shapes(), version.uri)
        if len(kinds) != 1:
            raise WeightsCorrupt(f"{version.uri}: tensors of several types: {', '.join(sorted(map(str, kinds)))}")
        named = str(kinds.pop()).removeprefix("torch.")
        origin = {"run": run, "version": version.version, "updates": version.updates, "checksum": version.checksum}
        _describe(partial, origin, named)
        written = parts(path)
        return Exported(len(written), sum(file.stat().st_size for file in written), named)


def write_critic(
    model_dir: Path, tensors: Iterable[tuple[str, torch.Tensor]], target: Path, origin: Mapping[str, Json], *, max_bytes: int
) -> None:
    """Write a critic with its head to ``target``, beside the files of the policy in ``model_dir`` whose backbone it has."""
    require_unused(target)
    with _appearing(model_dir, target) as partial:
        path, _ = write_weights(tensors, partial, max_bytes=max_bytes)
        (dtype, _), *_ = read_shapes(parts(path)[0]).values()
        _describe(partial, origin, _NAMES[dtype])


def require_unused(target: Path) -> None:
    """`UsageError` unless ``target`` does not exist or is an empty folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already: name a new folder or an empty one.")


@contextmanager
def _appearing(model_dir: Path, target: Path) -> Iterator[Path]:
    """A copy of ``model_dir`` without weights that becomes ``target`` when the block ends well, and vanishes when not."""
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(model_dir, partial, ignore=_without_weights)
        yield partial
        partial.rename(target)
    except OSError as error:
        raise NotReadyError(f"{target} could not be written: {error}. Name a folder elsewhere, or make room there.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _without_weights(folder: str, names: list[str]) -> set[str]:
    """What is not copied: weights in whatever format, which are those of the first model, and folders."""
    return {name for name in names if name.endswith(_WEIGHTS) or (Path(folder) / name).is_dir() or name == ORIGIN}


def _describe(folder: Path, origin: Mapping[str, Json], dtype: str) -> None:
    raw: dict[str, Json] = json.loads((folder / "config.json").read_text())
    raw.pop("torch_dtype", None)  # the older name of the same key
    (folder / "config.json").write_text(json.dumps({**raw, "dtype": dtype}, indent=2) + "\n")
    (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
