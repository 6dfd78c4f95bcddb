"""The trainer's side of new weights: straight from its memory into all servers, without a file that they must see.

Workers load what did not arrive from the version's file, so a push that fails costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from agentrl.engine.sglang.loading import CheckedWeights, NothingSent, Swap, check, loader_lock, raise_first, swap
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

    def __init__(
        self, urls: Sequence[str], config: ModelConfig, run: str, locks: Path, connect: Callable[[str], Server] = Server
    ) -> None:
        self._urls, self._config, self._names, self._locks, self._connect = urls, config, WeightNames(run), locks, connect

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[list[Server]]:
        """All servers, with the right to change their weights: taken before the version is known to anyone, so that workers
        wait for the push instead of loading the file."""
        async with AsyncExitStack() as stack:
            for url in sorted(self._urls):
                await stack.enter_async_context(loader_lock(self._locks, url.rstrip("/")))
            servers = [self._connect(url) for url in self._urls]
            for server in servers:
                stack.push_async_callback(server.close)
            yield servers

    def checked(self, version: PolicyVersion, tensors: Iterable[tuple[str, torch.Tensor]]) -> CheckedWeights:
        """`WeightsCorrupt` unless they fit the model."""
        return check(version, self._config, {name: tensor.detach().cpu() for name, tensor in tensors})

    async def push_pickled(self, pushes: Sequence[Push], weights: CheckedWeights) -> None:
        """Through HTTP, to all servers at once."""
        name, by_url = self.name(weights.version), {push.server.url: push for push in pushes}
        payloads: dict[tuple[str, ...], str] = {}

        async def send(server: Server) -> None:
            push = by_url[server.url]
            if push.tensors not in payloads:
                payloads[push.tensors] = await asyncio.to_thread(weights.pickled, push.tensors)
            await server.load_pickled(payloads[push.tensors], name, push.info.tp_size)

        await self._swap(pushes, weights, send)

    async def push_broadcast(self, pushes: Sequence[Push], weights: CheckedWeights, group: Group) -> None:
        """Over a group that `join` made of exactly these servers, with the same tensors for each; all receive together."""
        (names,) = {push.tensors for push in pushes}
        tensors = [weights.tensors[name] for name in names]
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        version = self._names.name(weights.version)
        sending: list[asyncio.Future[None]] = []

        async def send(server: Server) -> None:
            if any(push.error is not None for push in pushes):
                raise NothingSent("another server of the group could not be paused")
            if not sending:
                sending.append(asyncio.ensure_future(asyncio.to_thread(group.send, tensors)))
            loading = server.load_broadcast(names, dtypes, shapes, group.name, version)
            for outcome in reversed(await asyncio.gather(loading, asyncio.shield(sending[0]), return_exceptions=True)):
                if isinstance(outcome, BaseException):
                    raise outcome

        await self._swap(pushes, weights, send)

    async def _swap(self, pushes: Sequence[Push], weights: CheckedWeights, send: Callable[[Server], Awaitable[None]]) -> None:
        for push in pushes:
            push.sums = weights.sums(push.info)
        await swap(pushes, send, self._names.name(weights.version))

    def name(self, version: PolicyVersion) -> str:
        """What a server calls it."""
        return self._names.name(version)


@dataclass
class Push(Swap):
    """A server's part in a push: what it says of itself, and the names of the tensors that it is sent."""

    info: ServerInfo = field(kw_only=True)
    tensors: tuple[str, ...] = field(kw_only=True)


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
