"""A policy version becomes a model folder that others can open, or nothing appears at all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.errors import NotReadyError, UsageError, WeightsCorrupt
from agentrl.model.model_dir import open_model_dir
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.types import PolicyVersion
from agentrl.weights.files import export_weights
from agentrl.weights.model_folder import ORIGIN, export_model


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    build_tokenizer(["some text"], TokenizerPlan(), folder)
    build_tiny_model(folder, seed=0, d=32, ff=32)
    (folder / "pytorch_model.bin").write_bytes(b"weights of the first model")
    return folder


@pytest.fixture
def version(model_dir: Path, tmp_path: Path) -> PolicyVersion:
    trained = [(name, tensor + 1) for name, tensor in open_model_dir(model_dir).tensors()]
    file = export_weights(trained, tmp_path / "weights" / "v3", max_bytes=20_000)
    return PolicyVersion(3, 2, 3, file.uri, file.checksum, "published")


@pytest.mark.parametrize(("dtype", "max_bytes"), [(None, 20_000), ("bfloat16", 10**9), ("float16", 10**9), ("float32", 10**9)])
def test_export__opened_by_transformers_with_the_weights_of_the_version(
    model_dir: Path, version: PolicyVersion, tmp_path: Path, dtype: str | None, max_bytes: int
) -> None:
    target = tmp_path / "out" / "mine"
    done = export_model(model_dir, version, target, run="r", max_bytes=max_bytes, dtype=dtype)
    assert done.dtype == (dtype or "float32")
    assert (done.files > 1) == (max_bytes == 20_000)
    assert done.n_bytes == sum(file.stat().st_size for file in target.glob("*.safetensors"))
    first = dict(open_model_dir(model_dir).tensors())
    kind = getattr(torch, done.dtype)
    for name, tensor in open_model_dir(target).tensors():
        assert torch.equal(tensor, (first[name] + 1).to(kind))
    theirs = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert theirs.dtype == kind
    assert torch.equal(theirs.state_dict()["model.norm.weight"], (first["model.norm.weight"] + 1).to(kind))
    assert AutoTokenizer.from_pretrained(target).chat_template
    assert json.loads((target / ORIGIN).read_text()) == {
        "run": "r", "version": 3, "updates": 3, "checksum": version.checksum
    }  # fmt: skip
    assert not (target / "pytorch_model.bin").exists()
    assert [path.name for path in target.parent.iterdir()] == ["mine"]


def test_export_into_a_used_folder__refused(model_dir: Path, version: PolicyVersion, tmp_path: Path) -> None:
    target = tmp_path / "used"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        export_model(model_dir, version, target, run="r", max_bytes=10**9)
    assert (target / "notes.txt").read_text() == "mine"
    (target / "notes.txt").unlink()
    export_model(model_dir, version, target, run="r", max_bytes=10**9)


def test_export_to_where_nothing_can_be_written__says_so(model_dir: Path, version: PolicyVersion) -> None:
    with pytest.raises(NotReadyError, match=r"/proc/no/such/place could not be written: .*Name a folder elsewhere"):
        export_model(model_dir, version, Path("/proc/no/such/place"), run="r", max_bytes=10**9)


@pytest.mark.parametrize("fault", ["gone", "damaged", "other model"])
def test_weights_that_are_not_the_version__nothing_appears(
    model_dir: Path, version: PolicyVersion, tmp_path: Path, fault: str
) -> None:
    error: type[Exception] = WeightsCorrupt
    if fault == "gone":
        Path(version.uri).unlink()
        error = NotReadyError
    elif fault == "damaged":
        version = dataclasses.replace(version, checksum="sha256:0")
    else:
        file = export_weights([("a", torch.ones(2))], tmp_path / "weights" / "other")
        version = dataclasses.replace(version, uri=file.uri, checksum=file.checksum)
    target = tmp_path / "out"
    with pytest.raises(error):
        export_model(model_dir, version, target, run="r", max_bytes=10**9)
    assert not target.exists()
    assert not list(tmp_path.glob(".out*"))
