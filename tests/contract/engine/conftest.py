"""A small model with weights far from uniform, several versions of it, and each engine behind one harness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.engine.contract import Engine, GenerateRequest
from agentrl.engine.local import LocalEngine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.model.config import ModelConfig
from agentrl.model.tiny import build_tiny_model, initial_tensors
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.types import PolicyVersion, Sampling
from agentrl.weights.files import export_weights

MAX_CONTEXT = 96


@dataclass
class Versions:
    """Weights by version: each seed gives other distributions, none of them near uniform."""

    model_dir: Path
    folder: Path
    made: dict[int, PolicyVersion] = field(default_factory=dict)

    def __call__(self, version: int) -> PolicyVersion:
        if version not in self.made:
            file = export_weights(self.tensors(version), self.folder / f"v{version}")
            self.made[version] = PolicyVersion(version, None, version, file.uri, file.checksum, "published")
        return self.made[version]

    def tensors(self, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in initial_tensors(ModelConfig.read(self.model_dir), seed=100 + version):
            yield name, tensor * 8 if tensor.dim() > 1 else tensor


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(["say something, then stop"] * 10, TokenizerPlan(), folder)
    build_tiny_model(folder, seed=0, d=32, layers=2, heads=4, kv=2, ff=48, max_positions=MAX_CONTEXT)
    return folder


@pytest.fixture(scope="session")
def versions(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(model_dir, tmp_path_factory.mktemp("versions"))


def _script(request: GenerateRequest) -> list[int]:
    return np.random.default_rng(request.seed).integers(0, 250, request.max_new_tokens).tolist()


@pytest.fixture(params=["local", "scripted"])
def make_engine(request: pytest.FixtureRequest, model_dir: Path) -> Callable[..., Engine]:
    if request.param == "scripted":
        return lambda slots=8: ScriptedEngine(_script, max_context=MAX_CONTEXT)
    return lambda slots=8: LocalEngine(model_dir, slots=slots)


@pytest.fixture
def make_request() -> Callable[..., GenerateRequest]:
    def make(
        session: str = "s",
        token_ids: list[int] | None = None,
        *,
        n: int = 20,
        stops: tuple[int, ...] = (),
        temperature: float = 1.0,
        seed: int = 1,
    ) -> GenerateRequest:
        return GenerateRequest(session, token_ids or [10, 11, 12, 13], n, stops, Sampling(temperature), seed)

    return make
