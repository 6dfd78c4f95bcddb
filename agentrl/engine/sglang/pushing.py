"""The trainer's side of new weights: straight from its memory into all servers, without a file that they must see.

Workers load what did not arrive from the version's file, so a push that fails costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import torch

from agentrl.engine.sglang.loading import CheckedWeights, check, loader_lock, raise_first, swap
from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import Server, ServerInfo
from agentrl.model.config import ModelConfig
from agentrl.types import PolicyVersion

JOIN_S = 120.0


class Group(Protocol):
    """What `agentrl.weights.broadcast.BroadcastGroup` is, as far as it is used here."""

    name: str
    backend: str
    world_size: int

    def join(self, host: str, port: int, timeout_s: float) -> None: ...

    def send(self, tensors: Iterable[torch.Tensor]) -> None: ...

    def leave(self) -> None: ...


class Target:
    """The servers that a trainer pushes to. All calls of one push belong to one event loop."""

    def __init__(self, urls: Sequence[str], config: ModelConfig, run: str, locks: Path) -> None:
        self._urls, self._config, self._names, self._locks = urls, config, WeightNames(run), locks

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[list[Server]]:
        """All servers, with the right to change their weights: taken before the version is known to anyone, so that workers
        wait for the push instead of loading the file."""
        async with AsyncExitStack() as stack:
            for url in sorted(self._urls):
                await stack.enter_async_context(loader_lock(self._locks, url.rstrip("/")))
            servers = [Server(url) for url in self._urls]
            for server in servers:
                stack.push_async_callback(server.close)
            yield servers

    async def infos(self, servers: Sequence[Server]) -> list[ServerInfo]:
        return list(await asyncio.gather(*(server.info() for server in servers)))

    def checked(self, version: PolicyVersion, tensors: Iterable[tuple[str, torch.Tensor]]) -> CheckedWeights:
        """`WeightsCorrupt` unless they fit the model."""
        return check(version, self._config, {name: tensor.detach().cpu() for name, tensor in tensors})

    async def push_pickled(self, servers: Sequence[Server], infos: Sequence[ServerInfo], weights: CheckedWeights) -> None:
        """Through HTTP, to all servers at once."""
        payload, name = weights.pickled(), self._names.name(weights.version)

        async def send() -> Sequence[object]:
            loads = (server.load_pickled(payload, name, info.tp_size) for server, info in zip(servers, infos, strict=True))
            return await asyncio.gather(*loads, return_exceptions=True)

        await swap(servers, send, [weights.sums(info) for info in infos], name)

    async def push_broadcast(
        self, servers: Sequence[Server], infos: Sequence[ServerInfo], weights: CheckedWeights, group: Group
    ) -> None:
        """Over a group that `join` made; all servers receive at the same time."""
        names, tensors = list(weights.tensors), list(weights.tensors.values())
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        name = self._names.name(weights.version)

        async def send() -> Sequence[object]:
            loads = (server.load_broadcast(names, dtypes, shapes, group.name, name) for server in servers)
            sending = asyncio.to_thread(group.send, tensors)
            sent, *loaded = await asyncio.gather(sending, *loads, return_exceptions=True)
            return [sent or outcome for outcome in loaded]

        await swap(servers, send, [weights.sums(info) for info in infos], name)


async def join(servers: Sequence[Server], infos: Sequence[ServerInfo], group: Group, host: str, port: int) -> None:
    """This process and all ranks of all servers become one group; ``host`` is this machine as the servers see it."""
    joining = [asyncio.to_thread(group.join, host, port, JOIN_S)]
    rank = 1
    for server, info in zip(servers, infos, strict=True):
        joining.append(
            server.join_group(host, port, first_rank=rank, world_size=group.world_size, group=group.name, backend=group.backend)
        )
        rank += info.tp_size
    raise_first(await asyncio.gather(*joining, return_exceptions=True))
