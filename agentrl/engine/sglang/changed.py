"""Which tensors a server needs: all, or those that differ from what it was given last.

Invariants, each a test of this name:
- ``only_on_its_base``: changed tensors go only to a server that has the name of the last push and whose own sums of all its
  tensors are those that it reported after it; to any other go all.
- ``failure_forgets``: after a push that failed a server gets all tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import torch

from agentrl.engine.sglang.loading import CheckedWeights
from agentrl.engine.sglang.server import Server
from agentrl.errors import EngineError

WORTHWHILE = 0.1
"""Share of the bytes that must be unchanged for comparing to go on: where every tensor is trained it would only cost time."""


class LastPush:
    """What the servers were given last, as digests: a tensor is unchanged when it is bit-identical."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._changed: tuple[str, ...] = ()
        self._held: dict[str, tuple[str, list[dict[str, str]]]] = {}
        self._some_unchanged, self._given_up = False, False

    def compare(self, weights: CheckedWeights) -> None:
        """Find what changed since the last call."""
        names = tuple(weights.tensors)
        if self._given_up:
            self._changed = names
            return
        before, self._digests = self._digests, {name: _digest(tensor) for name, tensor in weights.tensors.items()}
        self._changed = tuple(name for name in names if before.get(name) != self._digests[name])
        self._some_unchanged = len(self._changed) < len(names)
        unchanged = weights.n_bytes() - weights.n_bytes(self._changed)
        self._given_up = bool(before) and unchanged < WORTHWHILE * weights.n_bytes()

    async def needed(self, server: Server, weights: CheckedWeights) -> tuple[str, ...]:
        """Names of the tensors to send; the caller holds the server's lock. At least one: a push of nothing is no push."""
        names = tuple(weights.tensors)
        if self._some_unchanged and not self._given_up and await self._holds_base(server):
            return self._changed or names[:1]
        return names

    async def _holds_base(self, server: Server) -> bool:
        base = self._held.get(server.url)
        if base is None:
            return False
        with suppress(EngineError):
            return await server.weight_version() == base[0] and await server.checksums() == base[1]
        return False

    async def remember(self, servers: Sequence[Server], name: str) -> None:
        """These servers now hold the weights ``name``; all others are forgotten."""
        held: dict[str, tuple[str, list[dict[str, str]]]] = {}
        for server in servers if self._some_unchanged and not self._given_up else ():
            with suppress(EngineError):  # one that reports no sums gets all tensors again
                held[server.url] = (name, await server.checksums())
        self._held = held


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(data.data)
    return digest.hexdigest()
