"""A model directory in Hugging Face format, checked before anything is built on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.model.config import ModelConfig, read_object
from agentrl.model.safetensors_io import Shapes, read_shapes, require_shapes
from agentrl.model.weight_files import model_tensors, weight_files
from agentrl.types import Json

PADDING_ROWS, PADDING_SHARE = 512, 0.1
"""Embedding rows without a token that are taken for padding: as many, or this share of the tokens if that is more."""


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
    _require_one_vocabulary(path, config)
    files = weight_files(path)
    try:
        shapes: Shapes = {name: shape for file in files for name, (_, shape) in read_shapes(file).items()}
        require_shapes(_without_tied_head(shapes, config), config.tensor_shapes(), str(path))
    except WeightsCorrupt as error:
        raise UsageError(f"the weights do not fit config.json: {error}") from error
    return ModelDir(path, config, files)


def _without_tied_head(shapes: Shapes, config: ModelConfig) -> Shapes:
    return {n: s for n, s in shapes.items() if not (config.tie_embeddings and n == "lm_head.weight")}


def _require_tokenizer(path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (path / name).is_file():
            raise UsageError(f"{path}: the model directory has no {name}")
    in_config = "chat_template" in _tokenizer_config(path)
    if not in_config and not (path / "chat_template.jinja").is_file():
        raise UsageError(f"{path}: the tokenizer has no chat template; add chat_template to tokenizer_config.json")


def _tokenizer_config(path: Path) -> dict[str, Json]:
    return read_object(path / "tokenizer_config.json", "settings of a tokenizer")


def _require_one_vocabulary(path: Path, config: ModelConfig) -> None:
    """An id without an embedding row fails in mid-run; rows far beyond the ids mean the tokenizer of another model."""
    try:
        ids = [*Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab(with_added_tokens=True).values()]
    except Exception as error:  # the library raises nothing more special
        raise UsageError(f"{path}/tokenizer.json can't be read: {error}") from error
    added = _tokenizer_config(path).get("added_tokens_decoder") or {}
    tokens, rows = max([-1, *ids, *map(int, added)]) + 1, config.vocab_size
    if tokens > rows:
        raise UsageError(
            f"{path}: the tokenizer has {tokens} token ids, but the model's vocab_size is {rows}: ids from {rows} on have no "
            f"embedding. Use the tokenizer that the model came with, or resize the model's embeddings to {tokens} rows."
        )
    if rows - tokens > max(PADDING_ROWS, PADDING_SHARE * tokens):
        raise UsageError(
            f"{path}: the model's vocab_size is {rows}, but the tokenizer has only {tokens} token ids: it is another model's. "
            "Use the tokenizer that the model came with."
        )
