"""Fake SGLang servers that do what a test tells them, and engines for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.engine.contract import GenerateRequest
from agentrl.engine.sglang.engine import SGLangEngine
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import checksum
from agentrl.model.tiny import initial_tensors
from agentrl.types import PolicyVersion, Sampling
from agentrl.weights.files import export_weights
from tests.fake_sglang import FakeSGLang

POLL_S = 0.01


class Case:
    """Fake servers by URL, engines for them, versions of weights."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.folder, self.model_dir = folder, model_dir
        self.servers: dict[str, FakeSGLang] = {}
        self.said: list[str] = []
        self.engines: list[SGLangEngine] = []

    def server(self, name: str) -> FakeSGLang:
        return self.servers.setdefault(f"http://{name}", FakeSGLang(self.model_dir))

    async def engine(self, *names: str, **options: Any) -> SGLangEngine:
        for name in names:
            self.server(name)
        engine = await SGLangEngine.connect(
            [f"http://{name}" for name in names],
            self.model_dir,
            transport=self.servers.__getitem__,
            tell=self.said.append,
            **{"run": "r", "locks": self.folder / "locks", "poll_s": POLL_S, "wait_s": 5.0, **options},
        )
        self.engines.append(engine)
        return engine

    def version(self, number: int) -> PolicyVersion:
        folder = self.folder / f"v{number}"
        if not folder.exists():
            export_weights(initial_tensors(ModelConfig.read(self.model_dir), seed=number), folder)
        file = next(folder.glob("*.safetensors"))
        return PolicyVersion(number, None, number, str(file), checksum(file), "published")


def turn(session: str = "s", n: int = 20, ids: tuple[int, ...] = (10, 11, 12), **sampling: Any) -> GenerateRequest:
    return GenerateRequest(session, list(ids), n, (), Sampling(**sampling), 1)


async def eventually(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never happened")
