"""A policy version as a model folder of its own: what Hugging Face tools, SGLang and ``--model`` take."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.errors import NotReadyError, UsageError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import require_shapes
from agentrl.model.weight_files import model_tensors, parts, verified, write_weights
from agentrl.types import Json, PolicyVersion

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
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
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already: name a new folder or an empty one.")
    if not Path(version.uri).is_file():
        raise NotReadyError(
            f"The weights of version {version.version} of run {run} are gone: there is no {version.uri}. Name another version; "
            "`agentrl db query versions` lists them."
        )
    config = ModelConfig.read(model_dir)
    files = verified(Path(version.uri), version.checksum)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        shutil.copytree(model_dir, partial, ignore=_without_weights)
        chosen = DTYPES[dtype] if dtype else None
        found: dict[str, tuple[int, ...]] = {}
        kinds: set[torch.dtype] = set()

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in model_tensors(files, config):
                found[name] = tuple(tensor.shape)
                kinds.add(chosen or tensor.dtype)
                yield name, tensor.to(chosen or tensor.dtype)

        path, _ = write_weights(tensors(), partial, max_bytes=max_bytes)
        require_shapes(found, config.tensor_shapes(), version.uri)
        if len(kinds) != 1:
            raise WeightsCorrupt(f"{version.uri}: tensors of several types: {', '.join(sorted(map(str, kinds)))}")
        named = str(kinds.pop()).removeprefix("torch.")
        _describe(partial, version, run, named)
        written = parts(path)
        exported = Exported(len(written), sum(file.stat().st_size for file in written), named)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return exported


def _without_weights(folder: str, names: list[str]) -> set[str]:
    """What is not copied: weights in whatever format, which are those of the first model, and folders."""
    return {name for name in names if name.endswith(_WEIGHTS) or (Path(folder) / name).is_dir() or name == ORIGIN}


def _describe(folder: Path, version: PolicyVersion, run: str, dtype: str) -> None:
    raw: dict[str, Json] = json.loads((folder / "config.json").read_text())
    raw.pop("torch_dtype", None)  # the older name of the same key
    (folder / "config.json").write_text(json.dumps({**raw, "dtype": dtype}, indent=2) + "\n")
    origin = {"run": run, "version": version.version, "updates": version.updates, "checksum": version.checksum}
    (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
