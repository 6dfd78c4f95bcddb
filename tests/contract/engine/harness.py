"""What the engine tests share: weights by version, and the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import torch

from agentrl.engine.contract import Engine
from agentrl.engine.sglang.engine import SGLangEngine
from agentrl.model.config import ModelConfig
from agentrl.model.tiny import initial_tensors
from agentrl.types import PolicyVersion
from agentrl.weights.files import export_weights
from tests.sglang_server import SGLang

MakeEngine = Callable[..., Awaitable[Engine]]
TOKENS = 80
"""Of a turn into whose middle something falls."""
SLOW_S = 0.03
"""What each forward of the real server takes longer, so that there is a middle."""


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


async def connect(url: str, model_dir: Path, folder: Path, **options: Any) -> SGLangEngine:
    """An engine that names its weights like no other, so that the server seems new to it."""
    settings = {"run": f"test-{uuid4().hex}", "locks": folder / "locks", "poll_s": 0.1, **options}
    return await SGLangEngine.connect([url], model_dir, **settings)


async def slow_down(sglang: SGLang, seconds: float | None) -> None:
    async with httpx2.AsyncClient(base_url=sglang.url) as client:
        (await client.post("/slow_down", json={"forward_sleep_time": seconds})).raise_for_status()


async def midway(engine: Engine) -> None:
    """Let running turns get some tokens, but not all."""
    if isinstance(engine, SGLangEngine):
        await asyncio.sleep(TOKENS * SLOW_S / 3)
        return
    for _ in range(12):
        await asyncio.sleep(0)
