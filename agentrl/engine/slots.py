"""The bookkeeping of a slot-based engine: which session owns which cache slot, which ids it holds, what is cached of them.

Invariants, each a test of this name:
- ``cached_is_prefix``: the cache of a slot holds keys and values of its first ``cached`` ids and of no others that count.
- ``never_deadlocks``: a session without a slot takes a free one, else that of the longest-idle session; it waits only
  while every slot is generating.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection

import numpy as np


class Slots:
    """Arrays by slot, for bookkeeping without a Python loop over requests. All of length ``n`` or [n, max_context].

    ``ids``: known ids; ``length``: how many; ``cached``: how many of them are in the cache; ``limit``: the length at which
    the running generation ends; by position of the id: ``logprobs``, ``versions`` and ``uniforms``.
    """

    def __init__(self, n: int, max_context: int) -> None:
        self.n = n
        self.max_context = max_context
        self.ids = np.zeros((n, max_context), dtype=np.int64)
        self.logprobs = np.zeros((n, max_context), dtype=np.float32)
        self.versions = np.zeros((n, max_context), dtype=np.int32)
        self.uniforms = np.zeros((n, max_context), dtype=np.float64)
        self.length = np.zeros(n, dtype=np.int64)
        self.cached = np.zeros(n, dtype=np.int64)
        self.limit = np.zeros(n, dtype=np.int64)
        self.temperature = np.ones(n, dtype=np.float32)
        self.stops = np.full((n, 1), -1, dtype=np.int64)
        self._free = list(range(n))
        self._idle: OrderedDict[str, int] = OrderedDict()

    @property
    def resting(self) -> Collection[str]:
        """Sessions that have a slot and do not generate, the longest-idle one first."""
        return self._idle

    def take(self, session: str) -> int | None:
        """A slot for a session that starts to generate: its own, a free one, or the longest-idle one; None: all busy."""
        slot = self._idle.pop(session, None)
        if slot is not None:
            return slot
        if self._free:
            slot = heapq.heappop(self._free)
        elif self._idle:
            _, slot = self._idle.popitem(last=False)
        else:
            return None
        self.cached[slot] = self.length[slot] = 0
        return slot

    def rest(self, session: str, slot: int) -> None:
        """The session has generated; its cache stays until someone needs the slot."""
        self._idle[session] = slot

    def forget(self, session: str) -> None:
        """Free the slot of an idle session; nothing when it has none."""
        slot = self._idle.pop(session, None)
        if slot is not None:
            self.free(slot)

    def free(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def begin(self, slot: int, ids: np.ndarray, max_new: int, u: np.ndarray, temperature: float, stops: tuple[int, ...]) -> int:
        """Set the slot up to generate after ``ids``; returns how many ids the cache holds already.

        The last id is never counted as cached: its forward gives the first distribution.
        """
        n = len(ids)
        known = min(n, int(self.cached[slot]))
        differs = np.flatnonzero(self.ids[slot, :known] != ids[:known])
        known = min(int(differs[0]) if len(differs) else known, n - 1)
        self.ids[slot, known:n] = ids[known:]
        self.cached[slot] = known
        self.length[slot] = n
        self.limit[slot] = n + max_new
        self.uniforms[slot, n : n + max_new] = u
        self.temperature[slot] = temperature
        if len(stops) > self.stops.shape[1]:
            more = np.full((self.n, len(stops) - self.stops.shape[1]), -1, dtype=np.int64)
            self.stops = np.concatenate([self.stops, more], axis=1)
        self.stops[slot] = -1
        self.stops[slot, : len(stops)] = stops
        return known

    def invalidate(self) -> None:
        """Nothing that is cached counts any more."""
        self.cached[:] = 0
