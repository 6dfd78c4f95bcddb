"""New weights into a running server: checked here first, pause, send, compare, go on.

A server dies on some weights that do not fit its model and takes others in silence, so nothing is sent unchecked.

Invariants, each a test of this name:
- ``checked_before_sent``: names, shapes, numbers and the file's checksum are right before a server hears of it.
- ``one_loader``: whoever changes a server's weights holds its lock; whoever holds it leaves the server running, or paused when
  what it holds is not what its name says, also when it is cancelled.
- ``name_and_sums``: a server whose sums are not those of its weights' name is loaded again, not resumed, and one with weights
  whose sums are not known here is left as it is.
- ``never_back``: a server that several share goes to newer versions of this run only.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import torch

from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import Server, ServerInfo, ServerRefused
from agentrl.engine.sglang.sums import comparable, differences, expected_sums
from agentrl.errors import EngineError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import require_shapes
from agentrl.model.weight_files import model_tensors, verified
from agentrl.monitor.stopwatch import Stopwatch
from agentrl.types import PolicyVersion

Sums = Mapping[str, str]
Route = Literal["disk", "tensor"]
LOCK_POLL_S = 0.02
LOCK_TELL_S = 30.0
"""How often a wait for a server's lock is told."""


@dataclass
class CheckedWeights:
    """Weights that fit the model, with what it takes to send them. ``tensors`` by HF name, on the CPU."""

    version: PolicyVersion
    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds that reading and checking them took."""
    _sums: dict[torch.dtype, Sums] = field(default_factory=dict)

    def sums(self, info: ServerInfo) -> Sums | None:
        """What the server should report; None when its sums can't be compared."""
        if not comparable(info) or self.config.experts is not None:  # whose layout depends on the server's kernels
            return None
        dtype = getattr(torch, info.dtype)
        if dtype not in self._sums:
            self._sums[dtype] = expected_sums(self.config, self.tensors, dtype)
        return self._sums[dtype]

    def n_bytes(self, names: Iterable[str] | None = None) -> int:
        """Of the tensors ``names``, of all by default."""
        return sum(self.tensors[name].nbytes for name in (self.tensors if names is None else names))

    def pickled(self, names: Iterable[str] | None = None) -> str:
        """base64 of a pickled list of (HF name, tensor), of all by default."""
        listed = [(name, self.tensors[name]) for name in (self.tensors if names is None else names)]
        return base64.b64encode(pickle.dumps(listed)).decode()


def read_checked(version: PolicyVersion, config: ModelConfig, watch: Stopwatch | None = None) -> CheckedWeights:
    """The files at ``version.uri``. `WeightsCorrupt` when checksum, a name, a shape or a number is not as it should be."""
    watch = watch or Stopwatch()
    try:
        with watch.phase("checksum"):
            files = verified(Path(version.uri), version.checksum)
    except WeightsCorrupt as error:
        raise WeightsCorrupt(f"version {version.version}: {error}") from error
    with watch.phase("read"):
        tensors = dict(model_tensors(files, config))
    return check(version, config, tensors, watch)


def check(
    version: PolicyVersion, config: ModelConfig, tensors: Mapping[str, torch.Tensor], watch: Stopwatch | None = None
) -> CheckedWeights:
    """`WeightsCorrupt` when a name, a shape or a number is not as it should be."""
    where, watch = f"version {version.version}", watch or Stopwatch()
    with watch.phase("check"):
        require_shapes({name: tuple(t.shape) for name, t in tensors.items()}, config.tensor_shapes(), where)
        broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise WeightsCorrupt(f"{where}: {broken[0]} holds numbers that are not finite")
    return CheckedWeights(version, config, tensors, watch.seconds)


def locks_folder(run_folder: Path) -> Path:
    """Where all processes of a run find the locks of its servers."""
    return run_folder / "engine"


@asynccontextmanager
async def loader_lock(folder: Path, url: str, tell: Callable[[str], None] = lambda line: None) -> AsyncIterator[None]:
    """The right to change the weights of the server at ``url``, among all processes that share ``folder``.

    Waits for as long as another process has it, and tells so. `EngineError` when no lock can be had there.
    """
    path = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a"))
            began = told = time.monotonic()
            while not _locked(file):
                await asyncio.sleep(LOCK_POLL_S)
                if time.monotonic() - told > LOCK_TELL_S:
                    told = time.monotonic()
                    tell(
                        f"waiting since {told - began:.0f} s for the process that changes the weights of {url} and holds {path}"
                    )
        except OSError as error:
            raise EngineError(f"{url}: its weights can't be changed without the lock {path}: {error}") from error
        yield


def _locked(file: IO[str]) -> bool:
    """False while another holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def bring(
    server: Server,
    info: ServerInfo,
    weights: CheckedWeights,
    names: WeightNames,
    *,
    route: Route,
    shared: bool,
    locks: Path,
    watch: Stopwatch,
    tell: Callable[[str], None],
) -> int | None:
    """Make the server hold these weights or, if it is ``shared``, newer ones of this run.

    Bytes that it was sent or read; None when nothing had to be done. `EngineError` when it could not be done.
    ``watch`` gets the seconds.
    """
    name, sent = names.name(weights.version), weights.n_bytes()

    async def send(server: Server) -> None:
        if route == "disk":
            await server.load_from_disk(str(Path(weights.version.uri).parent), name)
        else:
            await server.load_pickled(weights.pickled(), name, info.tp_size)

    async with AsyncExitStack() as stack:
        with watch.phase("lock"):
            await stack.enter_async_context(loader_lock(locks, server.url, tell))
        sums, held = weights.sums(info), await server.weight_version()
        number = names.version(held)
        if shared and number is not None and number > weights.version.version:
            return None
        # The name alone is not believed: a server that reported other sums is left with the right name.
        if held == name and (sums is None or not any(differences(sums, found) for found in await server.checksums())):
            await server.resume()  # in case that a loader died before it could
            return None
        swapping = Swap(server, sums, watch)
        await swap([swapping], send, name)
        raise_first([swapping.error])
        return sent


class NothingSent(EngineError):
    """The transfer did not begin: the server still holds what it held."""


@dataclass
class Swap:
    """One server's part in a change of weights. ``error``: why it does not hold them, set by `swap`."""

    server: Server
    sums: Sums | None
    watch: Stopwatch
    error: BaseException | None = None

    async def pause(self) -> None:
        with self.watch.phase("pause"):
            await self.server.pause()

    async def finish(self, name: str) -> None:
        """After the transfer: compare and go on."""
        if isinstance(self.error, (ServerRefused, NothingSent)):
            await self._resume()
            raise EngineError(f"{self.server.url} refused the weights {name}: {self.error.args[0]}") from self.error
        raise_first([self.error])
        with self.watch.phase("verify"):
            found = await self.server.checksums() if self.sums is not None else []
            for rank, reported in enumerate(found):
                wrong = differences(self.sums or {}, reported)
                if wrong:
                    raise EngineError(
                        f"{self.server.url}, rank {rank}: after loading {name}, {len(wrong)} of {len(reported)} tensors have "
                        f"another sum than ours, {wrong[0]} first; it stays paused. Is it a server of this model?"
                    )
        await self._resume()

    async def _resume(self) -> None:
        with self.watch.phase("resume"):
            await self.server.resume()


async def swap(swaps: Sequence[Swap], send: Callable[[Server], Awaitable[None]], name: str) -> None:
    """Pause, ``send`` to each server, compare, resume: generation goes on with the new weights. The caller holds the locks.

    Servers go through it together. One that refused keeps its old weights and goes on. One that broke or reports other sums
    stays paused, since nobody knows what it would sample from. What failed is in `Swap.error`.

    Whoever cancels it waits for its end: a server that is left paused answers nobody.
    """
    task = asyncio.ensure_future(_swap(swaps, send, name))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


async def _swap(swaps: Sequence[Swap], send: Callable[[Server], Awaitable[None]], name: str) -> None:
    async def transfer(swapping: Swap) -> None:
        with swapping.watch.phase("transfer"):
            await send(swapping.server)

    async def together(going: Sequence[Swap], step: Callable[[Swap], Awaitable[None]]) -> None:
        outcomes = await asyncio.gather(*map(step, going), return_exceptions=True)
        for swapping, outcome in zip(going, outcomes, strict=True):
            swapping.error = outcome

    await together(swaps, Swap.pause)
    await together([swapping for swapping in swaps if swapping.error is None], transfer)
    await together(swaps, lambda swapping: swapping.finish(name))


def raise_first(outcomes: Sequence[object]) -> None:
    """The first exception among them, as an `EngineError`."""
    for outcome in outcomes:
        if isinstance(outcome, EngineError):
            raise outcome
        if isinstance(outcome, BaseException):
            raise EngineError(f"weights could not be sent: {outcome!r}") from outcome
