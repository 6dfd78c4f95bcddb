"""A small model with weights far from uniform, several versions of it, and each engine behind one harness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engine.contract import Engine, GenerateRequest
from agentrl.engine.local import LocalEngine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.types import Sampling
from tests.contract.engine.harness import SLOW_S, MakeEngine, Versions, connect, slow_down
from tests.fake_sglang import FakeSGLang
from tests.sglang_server import MAX_CONTEXT, SGLang, contract_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return contract_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def versions(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(model_dir, tmp_path_factory.mktemp("versions"))


def _script(request: GenerateRequest) -> list[int]:
    return np.random.default_rng(request.seed).integers(0, 250, request.max_new_tokens).tolist()


@pytest.fixture(params=["local", "scripted", "fake_sglang", "sglang"])
def make_engine(request: pytest.FixtureRequest, model_dir: Path, tmp_path: Path) -> MakeEngine:
    """Makes the engine under test; call and await it. ``slow``: a turn of `TOKENS` tokens has a middle."""
    sglang: SGLang = request.getfixturevalue("sglang") if request.param == "sglang" else None

    async def make(slots: int = 8, *, slow: bool = False) -> Engine:
        if request.param == "scripted":
            return ScriptedEngine(_script, max_context=MAX_CONTEXT)
        if request.param == "local":
            return LocalEngine(model_dir, slots=slots)
        if request.param == "fake_sglang":
            fake = FakeSGLang(model_dir, token_s=SLOW_S if slow else 0.0)
            return await connect("http://fake", model_dir, tmp_path, transport=lambda url: fake)
        await slow_down(sglang, SLOW_S if slow else None)
        return await connect(sglang.url, model_dir, tmp_path)

    return make


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


@pytest.fixture
def reference(model_dir: Path, versions: Versions) -> Callable[..., np.ndarray]:
    """(version, ids, temperature) to the log-prob of each id given the ids before it, by transformers."""

    def logprobs(version: int, ids: list[int], temperature: float = 1.0) -> np.ndarray:
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(model_dir)).eval()
        missing, unexpected = model.load_state_dict(dict(versions.tensors(version)), strict=False)
        assert missing == ["lm_head.weight"]
        assert not unexpected
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        scores = torch.log_softmax(logits / (temperature or 1.0), -1)
        return scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()

    return logprobs
