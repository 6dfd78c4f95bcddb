"""A model directory in Hugging Face format, checked before anything is built on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import Shapes, read_shapes, read_tensors, require_shapes

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelDir:
    """A directory whose configuration, tokenizer files and weights are all there and fit each other."""

    path: Path
    config: ModelConfig
    weight_files: tuple[Path, ...]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight by HF name; a stored copy of tied embeddings is left out."""
        return model_tensors(self.weight_files, self.config)


def open_model_dir(path: Path) -> ModelDir:
    """Check a directory. `UsageError` names the directory and what is missing: a file, a chat template, or weights."""
    path = Path(path)
    if not path.is_dir():
        raise UsageError(f"{path}: no such model directory")
    config = ModelConfig.read(path)
    _require_tokenizer(path)
    files = weight_files(path)
    try:
        shapes: Shapes = {name: shape for file in files for name, (_, shape) in read_shapes(file).items()}
        require_shapes(_without_tied_head(shapes, config), config.tensor_shapes(), str(path))
    except WeightsCorrupt as error:
        raise UsageError(f"the weights do not fit config.json: {error}") from error
    return ModelDir(path, config, files)


def model_tensors(files: tuple[Path, ...], config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in ``files`` by HF name; a stored copy of tied embeddings is left out."""
    for file in files:
        for name, tensor in read_tensors(file):
            if not (config.tie_embeddings and name == "lm_head.weight"):
                yield name, tensor


def _without_tied_head(shapes: Shapes, config: ModelConfig) -> Shapes:
    return {n: s for n, s in shapes.items() if not (config.tie_embeddings and n == "lm_head.weight")}


def _require_tokenizer(path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (path / name).is_file():
            raise UsageError(f"{path}: the model directory has no {name}")
    in_config = "chat_template" in json.loads((path / "tokenizer_config.json").read_text())
    if not in_config and not (path / "chat_template.jinja").is_file():
        raise UsageError(f"{path}: the tokenizer has no chat template; add chat_template to tokenizer_config.json")


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files of a directory, one or the parts that its index names. `UsageError` when one is missing."""
    if (path / WEIGHTS).is_file():
        return (path / WEIGHTS,)
    if not (path / INDEX).is_file():
        raise UsageError(f"{path}: the model directory has no weights; expected {WEIGHTS} or {INDEX} with its parts")
    names = sorted(set(json.loads((path / INDEX).read_text())["weight_map"].values()))
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise UsageError(f"{path}: weights are missing: {', '.join(missing)}")
    return tuple(path / name for name in names)
