"""Pushes new weights from the trainer's memory into SGLang servers, when they are not to read the version's file.

Invariant
- push_is_a_shortcut: workers load what a push did not deliver, so that a failed one is a line in the log and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import torch

from agentrl.engine.sglang.pushing import Target, join
from agentrl.engine.sglang.server import Server, ServerInfo
from agentrl.errors import EngineError
from agentrl.model.config import ModelConfig
from agentrl.staleness import refresh_due
from agentrl.types import PolicyVersion
from agentrl.weights.broadcast import BroadcastGroup, free_port, own_address

Named = Sequence[tuple[str, torch.Tensor]]


@dataclass
class ServerPush:
    """Pushes every ``every``-th version for one trainer start: ``transport`` "tensor" through HTTP, "distributed" over a group.

    ``backend`` of the group: "gloo", or "nccl" between GPUs. ``tell`` gets a line for each push that failed.
    """

    urls: Sequence[str]
    config: ModelConfig
    run: str
    locks: Path
    transport: Literal["tensor", "distributed"]
    backend: str
    every: int
    tell: Callable[[str], None]
    _group: BroadcastGroup | None = field(default=None)
    _pushed: int | None = None
    _groups: int = 0

    def __call__(self, stage: Callable[[], PolicyVersion], tensors: Named) -> PolicyVersion:
        """Take the servers' locks, ``stage`` the version, push it. A push that fails is told and otherwise ignored."""
        return asyncio.run(self._push(stage, tensors))

    def close(self) -> None:
        """Leave the group."""
        self._leave()

    def _leave(self) -> None:
        if self._group is not None:
            self._group.leave()
            self._group = None

    async def _push(self, stage: Callable[[], PolicyVersion], tensors: Named) -> PolicyVersion:
        target = Target(self.urls, self.config, self.run, self.locks)
        async with target.locked() as servers:
            version = stage()
            if self._pushed is not None and not refresh_due(version.updates, self._pushed, self.every):
                return version
            weights = target.checked(version, tensors)
            try:
                infos = await target.infos(servers)
                if self.transport == "tensor":
                    await target.push_pickled(servers, infos, weights)
                else:
                    await target.push_broadcast(servers, infos, weights, await self._joined(servers, infos))
                self._pushed = version.updates
            except EngineError as error:
                self._leave()
                self.tell(f"push of version {version.version} failed, workers load its file: {error}")
        return version

    async def _joined(self, servers: Sequence[Server], infos: Sequence[ServerInfo]) -> BroadcastGroup:
        """The group of the last push; a new one after a failure, under a new name."""
        if self._group is None:
            self._groups += 1
            name = f"{self.run}-{time.time_ns():x}-{self._groups}"
            group = BroadcastGroup(name, self.backend, 1 + sum(info.tp_size for info in infos))
            first = urlsplit(servers[0].url)
            host = own_address(str(first.hostname), first.port or 80)
            await join(servers, infos, group, host, free_port(host))
            self._group = group
        return self._group
