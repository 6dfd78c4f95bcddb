"""An engine that answers from a script instead of a model: for tests of environments and of rollout.

It keeps the whole contract (the same suite runs against it), token by token in the event loop, so that loads, aborts and
cancellations can fall into the middle of a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl.engine.contract import EngineInfo, GenerateRequest, Generation
from agentrl.engine.load_log import LoadLog
from agentrl.engine.sampling import check_sampling
from agentrl.engine.traffic import Traffic
from agentrl.errors import EngineError, UsageError
from agentrl.store.loads import EngineLoad
from agentrl.types import FinishReason, PolicyVersion

LOGPROB = -0.5
"""Log-prob of every scripted token."""


@dataclass
class _Turn:
    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    aborted: bool = False


class ScriptedEngine:
    """``script`` maps a request to the ids of its answer; they are cut at the first stop token and at the budget.

    An answer without a stop token that is shorter than the budget is a mistake in the script: `UsageError`.
    """

    def __init__(self, script: Callable[[GenerateRequest], Sequence[int]], *, max_context: int = 4096) -> None:
        self.info = EngineInfo("scripted", "1", "float32", "sampled", max_context, reproducible=True)
        self._script = script
        self._version = -1
        self._turns: dict[str, _Turn] = {}
        self._closed = False
        self._traffic = Traffic()
        self._loads = LoadLog()

    @property
    def version(self) -> int:
        """The version named by the last load; -1 before it."""
        return self._version

    async def load(self, version: PolicyVersion) -> None:
        """Take the name of the version; there are no weights to read."""
        self._version = version.version
        self._loads.add(EngineLoad("", version.version))

    def take_loads(self) -> list[EngineLoad]:
        """See `LoadLog`."""
        return self._loads.take()

    async def generate(self, request: GenerateRequest) -> Generation:
        check_sampling(request.sampling)
        where = f"session {request.session}"
        if self._closed or self._version < 0:
            raise EngineError(f"{where}: the engine {'is closed' if self._closed else 'has no weights; load a version first'}")
        if request.session in self._turns:
            raise EngineError(f"{where}: a turn of this session is running already")
        if not len(request.token_ids) or request.max_new_tokens < 1:
            raise EngineError(f"{where}: the prompt or the token budget is empty")
        if len(request.token_ids) + request.max_new_tokens > self.info.max_context:
            raise EngineError(f"{where}: prompt and max_new_tokens do not fit a context of {self.info.max_context}")
        began = time.monotonic()
        turn = self._turns[request.session] = _Turn()
        try:
            reason = await self._play(request, turn)
        finally:
            del self._turns[request.session]
        n = len(turn.ids)
        generation = Generation(
            token_ids=np.array(turn.ids, dtype=np.int32),
            logprobs=np.full(n, LOGPROB, dtype=np.float32),
            versions=np.array(turn.versions, dtype=np.int32),
            finish_reason=reason,
            generate_s=time.monotonic() - began,
        )
        self._traffic.count(len(request.token_ids), generation)
        return generation

    async def _play(self, request: GenerateRequest, turn: _Turn) -> FinishReason:
        for token in self._script(request):
            await asyncio.sleep(0)
            if turn.aborted:
                return FinishReason.ABORT
            turn.ids.append(int(token))
            turn.versions.append(self._version)
            if token in request.stop_token_ids:
                return FinishReason.STOP
            if len(turn.ids) == request.max_new_tokens:
                return FinishReason.LENGTH
        raise UsageError(f"session {request.session}: the script's answer has neither a stop token nor max_new_tokens ids")

    def release(self, session: str) -> None:
        """A turn still running ends with ``FinishReason.ABORT``."""
        if session in self._turns:
            self._turns[session].aborted = True

    def metrics(self) -> dict[str, float]:
        """See `Traffic`."""
        return self._traffic.metrics()

    async def close(self) -> None:
        """End every request with ``FinishReason.ABORT``; later ones are refused."""
        self._closed = True
        for turn in self._turns.values():
            turn.aborted = True
