"""Pushes new weights from the trainer's memory into SGLang servers, when they are not to read the version's file.

Invariants
- push_is_a_shortcut: workers load what a push did not deliver, so that a failed one is a line in the log and no more.
- every_push_is_a_row: each attempt at each server is recorded with its seconds by phase, bytes and outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import torch

from agentrl.engine.sglang.changed import LastPush
from agentrl.engine.sglang.loading import CheckedWeights
from agentrl.engine.sglang.pushing import Push, Target, join
from agentrl.engine.sglang.server import Server
from agentrl.errors import EngineError, UsageError
from agentrl.model.config import ModelConfig
from agentrl.monitor.stopwatch import Stopwatch
from agentrl.staleness import refresh_due
from agentrl.store.loads import EngineLoad
from agentrl.types import PolicyVersion
from agentrl.weights.broadcast import BroadcastGroup, free_port, own_address

ATTEMPTS = 2
"""Pushes to a server that answers and did not take the first one; after that its workers load the file."""

Named = Sequence[tuple[str, torch.Tensor]]


@dataclass
class ServerPush:
    """Pushes every ``every``-th version for one trainer start: ``transport`` "tensor" through HTTP, "distributed" over a group.

    ``backend`` of the group: "gloo", or "nccl" between GPUs. ``tell`` gets a line for each push that failed, ``record`` each
    attempt at each server. Only tensors that changed since the last push go to a server that still holds that one.
    """

    urls: Sequence[str]
    config: ModelConfig
    run: str
    locks: Path
    transport: Literal["tensor", "distributed"]
    backend: str
    every: int
    tell: Callable[[str], None]
    record: Callable[[EngineLoad], None] = lambda load: None
    connect: Callable[[str], Server] = Server
    _group: BroadcastGroup | None = field(default=None)
    _members: tuple[str, ...] = ()
    _pushed: int | None = None
    _groups: int = 0
    _last: LastPush = field(default_factory=LastPush)

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
        target = Target(self.urls, self.config, self.run, self.locks, self.connect)
        async with target.locked() as servers:
            version = stage()
            if self._pushed is not None and not refresh_due(version.updates, self._pushed, self.every):
                return version
            weights = target.checked(version, tensors)
            comparing = Stopwatch()
            with comparing.phase("compare"):
                await asyncio.to_thread(self._last.compare, weights)
            done: list[Server] = []
            failed: dict[str, str] = {}
            pending: Sequence[Server] = servers
            for _ in range(ATTEMPTS):
                failed = {url: why for url, why in failed.items() if url not in {server.url for server in pending}}
                newly, pending = await self._deliver(target, pending, weights, done, comparing)
                failed |= newly
                if not pending:
                    break
            if not failed:
                self._pushed = version.updates
            await self._last.remember(done, target.name(version))
            for why in failed.values():
                self.tell(f"push of version {version.version} failed, workers load its file: {why}")
        return version

    async def _deliver(
        self, target: Target, servers: Sequence[Server], weights: CheckedWeights, done: list[Server], comparing: Stopwatch
    ) -> tuple[dict[str, str], list[Server]]:
        """One attempt; adds to ``done`` who holds the weights now. Why by URL for the others, and who of them answered."""
        pushes, failed = await self._answering(servers, weights)
        for url, why in failed.items():
            self.record(EngineLoad(url, weights.version.version, self.transport, error=why))
        try:
            if pushes and self.transport == "tensor":
                await target.push_pickled(pushes, weights)
            elif pushes:
                await target.push_broadcast(pushes, weights, await self._joined(pushes))
        except EngineError as no_group:
            for push in pushes:
                push.error = no_group
        for push in pushes:
            load = EngineLoad(push.server.url, weights.version.version, self.transport)
            phases = {**comparing.seconds, **push.watch.seconds}
            if push.error is None:
                done.append(push.server)
                self.record(replace(load, phases=phases, bytes=weights.n_bytes(push.tensors)))
            else:
                failed[push.server.url] = str(push.error.args[0])
                self.record(replace(load, phases=phases, error=failed[push.server.url]))
        if failed:
            self._leave()
        return failed, [push.server for push in pushes if push.error is not None]

    async def _answering(self, servers: Sequence[Server], weights: CheckedWeights) -> tuple[list[Push], dict[str, str]]:
        """A push for each server that answers, and why by URL for the others."""
        pushes, failed = [], {}
        found = await asyncio.gather(*(server.info() for server in servers), return_exceptions=True)
        for server, info in zip(servers, found, strict=True):
            if isinstance(info, (EngineError, UsageError)):
                failed[server.url] = str(info.args[0])
            elif isinstance(info, BaseException):
                raise info
            else:
                names = await self._last.needed(server, weights)
                pushes.append(Push(server, None, Stopwatch(), info=info, tensors=names))
        if self.transport == "distributed" and len({push.tensors for push in pushes}) > 1:
            for push in pushes:
                push.tensors = tuple(weights.tensors)
        return pushes, failed

    async def _joined(self, pushes: Sequence[Push]) -> BroadcastGroup:
        """The group of the last push; a new one after a failure or with other servers, under a new name."""
        members = tuple(push.server.url for push in pushes)
        if self._group is None or members != self._members:
            self._leave()
            self._groups += 1
            name = f"{self.run}-{time.time_ns():x}-{self._groups}"
            group = BroadcastGroup(name, self.backend, 1 + sum(push.info.tp_size for push in pushes))
            first = urlsplit(pushes[0].server.url)
            try:
                host = own_address(str(first.hostname), first.port or 80)
                port = free_port(host)
            except OSError as error:
                raise EngineError(f"this machine has no address for {pushes[0].server.url}: {error}") from error
            await join([push.server for push in pushes], [push.info for push in pushes], group, host, port)
            self._group, self._members = group, members
        return self._group
