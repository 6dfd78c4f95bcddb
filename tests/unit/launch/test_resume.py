"""A run is resumed with the model it was started with, or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.config.load import resolve
from agentrl.config.stored import to_row
from agentrl.errors import UsageError
from agentrl.launch.resume import require_same_model
from agentrl.model.config import ModelConfig, identity
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.trainer.checkpointing import FORMAT, MANIFEST


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(["some text"], TokenizerPlan(), folder)
    build_tiny_model(folder, seed=0, d=32, ff=32)
    return folder


def resume(model: Path, folder: Path, *, preset: str, saved: dict[str, dict[str, Any]]) -> None:
    config = resolve(environment="toy", preset=preset, file=None, flags={"model.path": str(model)}, overrides=[]).config
    run: Any = SimpleNamespace(id=1, spec=SimpleNamespace(config=to_row(config, folder)))
    manifest = json.dumps({"format": FORMAT, "models": saved}).encode()
    checksum = hashlib.sha256(manifest).hexdigest()
    (folder / "cut").mkdir(exist_ok=True)
    for path, data in ((folder / "cut", manifest[:20]), (folder, manifest)):
        (path / MANIFEST).write_bytes(data)
    checkpoints = [SimpleNamespace(uri=str(path), checksum=checksum) for path in (folder / "gone", folder / "cut", folder)]
    store: Any = SimpleNamespace(checkpoints=lambda number: checkpoints)
    require_same_model(run, store)


def described(model: Path, role: str = "policy", **changes: Any) -> dict[str, Any]:
    return {"role": role, **identity(ModelConfig.read(model).raw), **changes}


def test_same_model__goes_on(model: Path, tmp_path: Path) -> None:
    resume(model, tmp_path, preset="grpo", saved={"policy": described(model)})
    both = {role: described(model, role) for role in ("policy", "critic")}
    resume(model, tmp_path, preset="sao", saved=both)


def test_checkpoint_of_another_model__both_sizes_and_the_remedy(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"hidden_size is 64 in the checkpoint, 32 in the model\. Resume with the model"):
        resume(model, tmp_path, preset="grpo", saved={"policy": described(model, hidden_size=64)})


def test_checkpoint_without_a_critic__names_what_there_is(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds policy, this run trains critic, policy"):
        resume(model, tmp_path, preset="sao", saved={"policy": described(model)})
