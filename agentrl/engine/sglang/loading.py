"""New weights into a running server: checked here first, pause, send, compare, go on.

A server dies on some weights that do not fit its model and takes others in silence, so nothing is sent unchecked.

Invariants, each a test of this name:
- ``checked_before_sent``: names, shapes, numbers and the file's checksum are right before a server hears of it.
- ``one_loader``: whoever changes a server's weights holds its lock; whoever holds it leaves the server running, or paused when
  what it holds is not what its name says.
- ``never_back``: a server that several share goes to newer versions of this run only.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import Server, ServerInfo, ServerRefused
from agentrl.engine.sglang.sums import comparable, differences, expected_sums
from agentrl.errors import EngineError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import require_shapes
from agentrl.model.weight_files import model_tensors, verified
from agentrl.types import PolicyVersion

Sums = Mapping[str, str]
Route = Literal["disk", "tensor"]
LOCK_POLL_S = 0.02


@dataclass
class CheckedWeights:
    """Weights that fit the model, with what it takes to send them. ``tensors`` by HF name, on the CPU."""

    version: PolicyVersion
    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    _sums: dict[torch.dtype, Sums] = field(default_factory=dict)

    def sums(self, info: ServerInfo) -> Sums | None:
        """What the server should report; None when its sums can't be compared."""
        if not comparable(info) or self.config.experts is not None:  # whose layout depends on the server's kernels
            return None
        dtype = getattr(torch, info.dtype)
        if dtype not in self._sums:
            self._sums[dtype] = expected_sums(self.config, self.tensors, dtype)
        return self._sums[dtype]

    def pickled(self) -> str:
        """base64 of a pickled list of (HF name, tensor)."""
        return base64.b64encode(pickle.dumps(list(self.tensors.items()))).decode()


def read_checked(version: PolicyVersion, config: ModelConfig) -> CheckedWeights:
    """The files at ``version.uri``. `WeightsCorrupt` when checksum, a name, a shape or a number is not as it should be."""
    return check(version, config, dict(model_tensors(verified(Path(version.uri), version.checksum), config)))


def check(version: PolicyVersion, config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> CheckedWeights:
    """`WeightsCorrupt` when a name, a shape or a number is not as it should be."""
    where = f"version {version.version}"
    require_shapes({name: tuple(t.shape) for name, t in tensors.items()}, config.tensor_shapes(), where)
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise WeightsCorrupt(f"{where}: {broken[0]} holds numbers that are not finite")
    return CheckedWeights(version, config, tensors)


def locks_folder(run_folder: Path) -> Path:
    """Where all processes of a run find the locks of its servers."""
    return run_folder / "engine"


@asynccontextmanager
async def loader_lock(folder: Path, url: str) -> AsyncIterator[None]:
    """The right to change the weights of the server at ``url``, among all processes that share ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield


async def holds(server: Server, names: WeightNames, version: PolicyVersion, *, shared: bool) -> bool:
    """Whether the server needs no load: it has these weights or, if it is shared, newer ones of this run."""
    held = await server.weight_version()
    number = names.version(held)
    return held == names.name(version) or (shared and number is not None and number > version.version)


async def bring(
    server: Server, info: ServerInfo, weights: CheckedWeights, names: WeightNames, *, route: Route, shared: bool, locks: Path
) -> bool:
    """Make the server hold these weights; True when something was sent. `EngineError` when it could not be done."""
    name = names.name(weights.version)

    async def send() -> Sequence[object]:
        if route == "disk":
            sending = server.load_from_disk(str(Path(weights.version.uri).parent), name)
        else:
            sending = server.load_pickled(weights.pickled(), name, info.tp_size)
        return await asyncio.gather(sending, return_exceptions=True)

    async with loader_lock(locks, server.url):
        if await holds(server, names, weights.version, shared=shared):
            await server.resume()  # in case that a loader died before it could
            return False
        await swap([server], send, [weights.sums(info)], name)
        return True


async def swap(
    servers: Sequence[Server], send: Callable[[], Awaitable[Sequence[object]]], sums: Sequence[Sums | None], name: str
) -> None:
    """Pause, ``send``, compare, resume: generation goes on with the new weights. The caller holds the servers' locks.

    ``send`` returns an outcome by server, an exception where it failed. A server that refused keeps its old weights and goes
    on. One that broke or reports other sums stays paused, since nobody knows what it would sample from. `EngineError` names the
    first that failed, after all were served.
    """
    await asyncio.gather(*(server.pause() for server in servers))
    outcomes = await send()
    finished = await asyncio.gather(
        *(_finish(*each, name) for each in zip(servers, outcomes, sums, strict=True)), return_exceptions=True
    )
    raise_first(finished)


async def _finish(server: Server, outcome: object, sums: Sums | None, name: str) -> None:
    if isinstance(outcome, ServerRefused):
        await server.resume()
        raise EngineError(f"{server.url} refused the weights {name}: {outcome.args[0]}") from outcome
    raise_first([outcome])
    for rank, found in enumerate(await server.checksums() if sums is not None else ()):
        wrong = differences(sums or {}, found)
        if wrong:
            raise EngineError(
                f"{server.url}, rank {rank}: after loading {name}, {len(wrong)} of {len(found)} tensors have another sum than "
                f"ours, {wrong[0]} first; it stays paused. Is it a server of this model?"
            )
    await server.resume()


def raise_first(outcomes: Sequence[object]) -> None:
    """The first exception among them, as an `EngineError`."""
    for outcome in outcomes:
        if isinstance(outcome, EngineError):
            raise outcome
        if isinstance(outcome, BaseException):
            raise EngineError(f"weights could not be sent: {outcome!r}") from outcome
