"""Where the critic's weights come from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_samples import reference_model, sample_rows, trained, weights_of

from agentrl.config.run import ModelSettings, RunConfig
from agentrl.errors import UsageError
from agentrl.model.config import ModelConfig
from agentrl.model.model_dir import ModelDir
from agentrl.model.safetensors_io import write_tensors
from agentrl.trainer.models import build_critic, critic_weights


def model_dir(folder: Path) -> ModelDir:
    reference = reference_model()
    raw = {**reference.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    write_tensors(weights_of(reference).items(), folder / "model.safetensors")
    return ModelDir(folder, ModelConfig.from_raw(raw, "test"), (folder / "model.safetensors",))


def config(path: Path | None) -> RunConfig:
    return RunConfig(environment="e", model=ModelSettings(critic_path=None if path is None else str(path)))


def test_critic_from_a_path__brings_its_head(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "critic").mkdir()
    model = model_dir(tmp_path / "policy")
    other = trained(reference_model(seed=4), "critic")
    other.step(sample_rows([9, 8]), lambda o, c: (o["value"] - 1).square().sum(), denominator=1.0, learning_rate=1e-2)
    write_tensors(other.export(), tmp_path / "critic" / "model.safetensors")
    built = build_critic(config(tmp_path / "critic"), model)
    rows = sample_rows([7])
    assert torch.equal(built.forward(rows)[0]["value"], other.forward(rows)[0]["value"])
    assert not build_critic(config(None), model).forward(rows)[0]["value"].any()


def test_critic_path_without_weights__refused(tmp_path: Path) -> None:
    policy = ModelConfig.from_raw({**reference_model().config.to_dict(), "architectures": ["LlamaForCausalLM"]}, "test")
    with pytest.raises(UsageError, match="no weights"):
        list(critic_weights(tmp_path, policy))
    with pytest.raises(UsageError, match="no such directory"):
        list(critic_weights(tmp_path / "nowhere", policy))


def test_critic_of_another_size__refused_with_both_shapes(tmp_path: Path) -> None:
    (tmp_path / "critic").mkdir()
    write_tensors(weights_of(reference_model(vocab_size=50)).items(), tmp_path / "critic" / "model.safetensors")
    with pytest.raises(UsageError, match=r"critic_path .* is \[50, 32\], not \[48, 32\]"):
        build_critic(config(tmp_path / "critic"), model_dir(tmp_path))
