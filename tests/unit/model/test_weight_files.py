"""Weights as one file or as parts with an index: the same bits, whole or not at all, and readable by transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.model_dir import open_model_dir
from agentrl.model.safetensors_io import read_tensors
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.model.weight_files import INDEX, WEIGHTS, model_tensors, parts, verified, weight_files, write_weights

TENSORS = [(name, torch.randn(10, generator=torch.Generator().manual_seed(i))) for i, name in enumerate("abcde")]


def read(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in parts(path) for name, tensor in read_tensors(file)}


@pytest.mark.parametrize(("max_bytes", "n_files"), [(200, 1), (80, 3), (1, 5)])
def test_parts__no_larger_than_asked_and_the_same_bits(tmp_path: Path, max_bytes: int, n_files: int) -> None:
    path, digest = write_weights(iter(TENSORS), tmp_path / "w", max_bytes=max_bytes)
    files = verified(path, digest)
    assert files == weight_files(tmp_path / "w") == parts(path)
    assert len(files) == n_files
    assert {p.name for p in path.parent.iterdir()} == {*(f.name for f in files), path.name}
    found = read(path)
    assert list(found) == list("abcde")
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS)


@pytest.mark.parametrize("tied", [True, False])
def test_parts_of_a_model__read_by_transformers_and_by_us(tmp_path: Path, tied: bool) -> None:
    build_tokenizer(["some text"], TokenizerPlan(), tmp_path)
    build_tiny_model(tmp_path, seed=3, d=32, ff=32)
    raw = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / WEIGHTS).unlink()
    shapes = ModelConfig.read(tmp_path).tensor_shapes()
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    path, _ = write_weights(tensors.items(), tmp_path, max_bytes=20_000)
    assert path.name == INDEX
    assert json.loads(path.read_text())["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    opened = dict(open_model_dir(tmp_path).tensors())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(opened[name], tensor)
        assert torch.equal(theirs[name], tensor)
    theirs_again = tmp_path / "theirs"
    AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").save_pretrained(theirs_again, max_shard_size="20kB")
    assert len(weight_files(theirs_again)) > 1
    config = ModelConfig.read(tmp_path)
    assert all(torch.equal(tensors[name], t) for name, t in model_tensors(weight_files(theirs_again), config))


@pytest.mark.parametrize("damage", ["part", "index", "missing", "swapped"])
def test_checksum_of_the_index__stands_for_all_parts(tmp_path: Path, damage: str) -> None:
    path, digest = write_weights(TENSORS, tmp_path, max_bytes=80)
    first, second, _ = parts(path)
    if damage == "part":
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
    elif damage == "index":
        path.write_text(path.read_text() + " ")
    elif damage == "missing":
        second.unlink()
    else:
        data, other = first.read_bytes(), second.read_bytes()
        first.write_bytes(other)
        second.write_bytes(data)
    with pytest.raises(WeightsCorrupt, match="missing: model-00002" if damage == "missing" else "damaged or replaced"):
        verified(path, digest)


def test_folder_with_weights__never_overwritten(tmp_path: Path) -> None:
    path, digest = write_weights(TENSORS, tmp_path, max_bytes=80)
    for max_bytes in (80, 1000):
        with pytest.raises(FileExistsError):
            write_weights(TENSORS, tmp_path, max_bytes=max_bytes)
    verified(path, digest)


def test_source_that_fails_in_a_later_part__leaves_nothing(tmp_path: Path) -> None:
    def failing():  # type: ignore[no-untyped-def]
        yield from TENSORS[:3]
        raise RuntimeError("lost rank")

    with pytest.raises(RuntimeError, match="lost rank"):
        write_weights(failing(), tmp_path, max_bytes=80)
    with pytest.raises(ValueError, match="twice"):
        write_weights([*TENSORS, TENSORS[0]], tmp_path, max_bytes=80)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": "../elsewhere.safetensors"}}'])
def test_index_that_is_none__refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(UsageError, match=INDEX):
        weight_files(tmp_path)
