"""A model directory is checked before anything is built on it; tensors are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.model.model_dir import open_model_dir
from agentrl.model.safetensors_io import (
    checksum,
    read_shapes,
    read_tensors,
    require_same_layout,
    write_tensors,
)
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    build_tokenizer(["some text"], TokenizerPlan(), folder)
    build_tiny_model(folder, seed=0, d=32, ff=32)
    return folder


def test_complete_directory__opens_with_its_tensors(folder: Path) -> None:
    opened = open_model_dir(folder)
    assert {name: tuple(t.shape) for name, t in opened.tensors()} == opened.config.tensor_shapes()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_missing_file__named_with_the_directory(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError, match=name) as refused:
        open_model_dir(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), ("[]", "a JSON list")])
def test_tokenizer_settings_that_are_none__named(folder: Path, text: str, said: str) -> None:
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(UsageError, match=f"tokenizer_config.json: .*{said}"):
        open_model_dir(folder)


def test_missing_directory_or_weights_or_template__named(folder: Path) -> None:
    with pytest.raises(UsageError, match="no such model directory"):
        open_model_dir(folder / "none")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    template = settings.pop("chat_template")
    path.write_text(json.dumps(settings))
    with pytest.raises(UsageError, match="no chat template"):
        open_model_dir(folder)
    (folder / "chat_template.jinja").write_text(template)
    open_model_dir(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no weights"):
        open_model_dir(folder)


def test_sharded_weights__opened_and_a_missing_part_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for part, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / part)
    index = {"weight_map": {name: part for part, members in parts.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    assert set(dict(open_model_dir(folder).tensors())) == set(tensors)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(UsageError, match=r"missing: model-2\.safetensors"):
        open_model_dir(folder)


def test_weights_that_do_not_fit_the_config__refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UsageError, match=r"missing model\.norm\.weight"):
        open_model_dir(folder)
    save_file({**tensors, "model.norm.weight": norm[:-1].clone()}, folder / "model.safetensors")
    with pytest.raises(UsageError, match=r"model\.norm\.weight is \[31\], not \[32\]"):
        open_model_dir(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(UsageError, match="not a safetensors file"):
        open_model_dir(folder)


def test_stored_copy_of_tied_embeddings__left_out(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    assert "lm_head.weight" not in dict(open_model_dir(folder).tensors())


def with_rows(folder: Path, rows: int) -> None:
    """The same model with another number of embedding rows; the tokenizer stays."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.embed_tokens.weight": torch.zeros(rows, 32)}, folder / "model.safetensors")


def test_tokenizer_of_another_model__refused_with_both_numbers(folder: Path) -> None:
    tokens = open_model_dir(folder).config.vocab_size
    with_rows(folder, tokens + 100)  # padding, as many models have it
    open_model_dir(folder)
    with_rows(folder, tokens + 5000)
    with pytest.raises(UsageError, match=f"vocab_size is {tokens + 5000}, but the tokenizer has only {tokens} token ids"):
        open_model_dir(folder)
    with_rows(folder, tokens - 1)
    with pytest.raises(UsageError, match=f"{tokens} token ids, but the model's vocab_size is {tokens - 1}.*resize"):
        open_model_dir(folder)
    with_rows(folder, tokens)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": {str(tokens): {}}}))
    with pytest.raises(UsageError, match=f"{tokens + 1} token ids"):
        open_model_dir(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json can't be read"):
        open_model_dir(folder)


TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([1.5], dtype=torch.bfloat16)}


def test_written_tensors__read_back_with_checksum(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.safetensors"
    digest = write_tensors(((name, t.t() if t.dim() == 2 else t) for name, t in TENSORS.items()), path)
    assert digest == checksum(path)
    read = dict(read_tensors(path))
    assert torch.equal(read["b"], TENSORS["b"].t())
    assert read_shapes(path) == {"b": ("F32", (3, 2)), "a": ("BF16", (1,))}
    assert list(path.parent.iterdir()) == [path]


def test_written_tensors__have_the_rights_of_any_new_file(tmp_path: Path) -> None:
    write_tensors(TENSORS.items(), tmp_path / "x.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_taken_name__refused_and_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    before = write_tensors(TENSORS.items(), path)
    with pytest.raises(FileExistsError):
        write_tensors([("a", torch.zeros(1))], path)
    assert checksum(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_source_that_fails__leaves_nothing(tmp_path: Path) -> None:
    def failing():  # type: ignore[no-untyped-def]
        yield "a", torch.zeros(1)
        raise RuntimeError("lost rank")

    with pytest.raises(RuntimeError, match="lost rank"):
        write_tensors(failing(), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="twice"):
        write_tensors([("a", torch.zeros(1)), ("a", torch.zeros(1))], tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_other_layout__first_differences_named(tmp_path: Path) -> None:
    reference, path = tmp_path / "reference", tmp_path / "other"
    write_tensors(TENSORS.items(), reference)
    write_tensors({"b": torch.zeros(3, 2), "c": torch.zeros(1)}.items(), path)
    with pytest.raises(WeightsCorrupt, match=r"missing a; unexpected c; b is \[3, 2\], not \[2, 3\]"):
        require_same_layout(path, reference)
    write_tensors({"b": torch.zeros(2, 3), "a": torch.zeros(1)}.items(), tmp_path / "dtype")
    with pytest.raises(WeightsCorrupt, match="a is F32"):
        require_same_layout(tmp_path / "dtype", reference)
    require_same_layout(reference, reference)
