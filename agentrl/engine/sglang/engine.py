"""The SGLang engine: requests in token ids to servers that hold this run's weights.

Invariants, each a test of this name:
- ``preflight``: what would kill a server or be cut in silence (ids outside of the vocabulary, too long a request, cut
  distributions) is refused before it is sent.
- ``reissue``: a request whose server was lost is sent again, since nothing of it was recorded; at most `REISSUES` times, so
  that a request that kills servers does not kill them all.
- ``abort_is_partial``: an aborted turn returns the tokens it has.
- ``only_asked_ends``: where a server ends a turn for reasons of its own (an end-of-sequence id that the request does not name,
  an abort by someone else), the turn goes on behind the tokens it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import numpy as np

from agentrl.engine.contract import EngineInfo, GenerateRequest, Generation
from agentrl.engine.sampling import check_sampling
from agentrl.engine.sglang.fleet import POLL_S, Fleet, Member
from agentrl.engine.sglang.loading import Route, read_checked
from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.reply import ForeignWeights, Reply, parse_reply
from agentrl.engine.sglang.server import Server, ServerGone, ServerInfo, ServerRefused
from agentrl.engine.traffic import Traffic
from agentrl.errors import EngineError, WeightsCorrupt, WrongAnswer
from agentrl.model.config import ModelConfig
from agentrl.monitor.stopwatch import Stopwatch
from agentrl.store.loads import EngineLoad
from agentrl.types import FinishReason, PolicyVersion

NO_VERSION = -1
REISSUES = 3
ABORT_S = 0.2
"""An abort that overtook its request is not known to the server, so it is repeated."""
CLOSE_S = 10.0
WAIT_S = 300.0


@dataclass(eq=False)
class _Turn:
    request: GenerateRequest
    ids: list[int]
    rid: str = ""
    member: Member | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class SGLangEngine:
    """Implements `agentrl.engine.contract.Engine` with running servers; made by `connect`. It stops none of them."""

    def __init__(self, fleet: Fleet, config: ModelConfig, names: WeightNames, server: ServerInfo, request_s: float) -> None:
        context = min(config.max_positions, server.max_context)
        self.info = EngineInfo("sglang", server.version, server.dtype, "sampled", context, reproducible=False)
        self._fleet, self._config, self._names, self._request_s = fleet, config, names, request_s
        self._version = NO_VERSION
        self._turns: dict[str, _Turn] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()
        self._closed = False
        self._traffic = Traffic()
        self._reissued = self._retractions = 0

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        model_dir: Path,
        *,
        run: str,
        locks: Path,
        route: Route = "disk",
        shared: bool = True,
        wait_s: float = WAIT_S,
        request_s: float = 1800.0,
        tell: Callable[[str], None] = lambda line: None,
        transport: Callable[[str], httpx2.AsyncBaseTransport] | None = None,
        poll_s: float = POLL_S,
    ) -> SGLangEngine:
        """Wait up to ``wait_s`` until the first server serves; the others join as they come.

        ``run`` names the weights on the servers; ``locks`` is a folder that all who load weights into them share; ``route``
        is how `load` sends them; ``shared`` False lets a load go back to an older version. `UsageError` when a server is too
        old or serves another architecture, `EngineError` when none serves in time.
        """
        config, names = ModelConfig.read(Path(model_dir)), WeightNames(run)
        servers = [Server(url, transport(url) if transport else None) for url in urls]
        fleet = Fleet(servers, config, names, route=route, shared=shared, locks=locks, wait_s=wait_s, tell=tell, poll_s=poll_s)
        try:
            info = await fleet.start()
        except BaseException:
            await fleet.close()
            raise
        return cls(fleet, config, names, info, request_s)

    @property
    def version(self) -> int:
        """Version that every server which takes requests holds; -1 before the first load."""
        return self._version

    async def load(self, version: PolicyVersion) -> None:
        """Update the servers in flight: running turns go on with the new weights and say so token by token.

        `WeightsCorrupt` when the file is not as it should be; no server was touched then.
        """
        async with self._loading:
            watch = Stopwatch()
            try:
                weights = await asyncio.to_thread(read_checked, version, self._config, watch)
            except WeightsCorrupt as error:
                self._fleet.log.add(EngineLoad("", version.version, phases=watch.seconds, error=str(error)))
                raise
            await self._fleet.load(weights)
            self._version = version.version

    def take_loads(self) -> list[EngineLoad]:
        """One for each server that was sent something, also behind a `load`; see `LoadLog`."""
        return self._fleet.log.take()

    async def generate(self, request: GenerateRequest) -> Generation:
        turn = self._accept(request)
        self._turns[request.session] = turn
        answered = False
        try:
            async with asyncio.timeout(self._request_s):
                generation = await self._play(turn)
            answered = True
        except TimeoutError as error:
            waited = "no server took it" if turn.member is None else f"the last to take it was {turn.member.server.url}"
            raise EngineError(
                f"session {request.session}: no answer within {self._request_s:g} s (engine.request_s); {waited}"
            ) from error
        finally:
            del self._turns[request.session]
            turn.ended.set()
            if not answered:
                self._background(self._withdraw(turn))
        self._traffic.count(len(request.token_ids), generation)
        return generation

    def release(self, session: str) -> None:
        """The session is over; a turn still running ends with ``FinishReason.ABORT``."""
        turn = self._turns.get(session)
        if turn is not None and not turn.aborted.is_set():
            turn.aborted.set()
            self._background(self._abort(turn))
        self._fleet.forget(session)

    def metrics(self) -> dict[str, float]:
        """`Traffic`; servers, how many are up, how often one was lost; requests sent again, preempted; loads and their time."""
        fleet = self._fleet
        servers = {"servers": len(fleet.members), "servers_up": fleet.n_up, "servers_lost": fleet.lost_servers}
        requests = {"reissued": self._reissued, "retractions": self._retractions}
        loads = {"loads": fleet.loads, "load_s": round(fleet.load_s, 3)}
        return {**self._traffic.metrics(), **servers, **requests, **loads}

    async def close(self) -> None:
        """End every request with ``FinishReason.ABORT``; later ones are refused. The servers go on."""
        self._closed = True
        turns = list(self._turns.values())
        for turn in turns:
            self.release(turn.request.session)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(turn.ended.wait() for turn in turns))
                await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._fleet.close()

    def _accept(self, request: GenerateRequest) -> _Turn:
        check_sampling(request.sampling)
        ids = [int(i) for i in request.token_ids]
        where = f"session {request.session}"
        if self._closed or self._version == NO_VERSION:
            raise EngineError(f"{where}: the engine {'is closed' if self._closed else 'has no weights; load a version first'}")
        if request.session in self._turns:
            raise EngineError(f"{where}: a turn of this session is running already")
        if not ids or min(ids) < 0 or max(ids) >= self._config.vocab_size:
            raise EngineError(f"{where}: the prompt is empty or holds ids outside of [0, {self._config.vocab_size})")
        if request.max_new_tokens < 1 or len(ids) + request.max_new_tokens > self.info.max_context:
            raise EngineError(
                f"{where}: {len(ids)} prompt tokens and max_new_tokens={request.max_new_tokens} do not fit "
                f"a context of {self.info.max_context}"
            )
        return _Turn(request, ids)

    async def _play(self, turn: _Turn) -> Generation:
        """One answer, or several when the server ended for reasons of its own."""
        limit, stops = turn.request.max_new_tokens, turn.request.stop_token_ids
        parts: list[Reply] = []
        ids: list[int] = []
        empty = 0
        while True:
            part = await self._answer(turn, turn.ids + ids, len(ids))
            if part is not None:
                parts.append(part)
                ids += part.token_ids.tolist()
                empty += not len(part.token_ids)
            if ids and ids[-1] in stops:
                return self._joined(turn, parts, FinishReason.STOP)
            if len(ids) >= limit:
                return self._joined(turn, parts, FinishReason.LENGTH)
            if part is None or turn.aborted.is_set():
                return self._joined(turn, parts, FinishReason.ABORT)
            if empty > REISSUES:
                raise WrongAnswer(
                    f"session {turn.request.session}: {empty} answers without a token, the last ended by {part.why}"
                )

    def _joined(self, turn: _Turn, parts: Sequence[Reply], reason: FinishReason) -> Generation:
        ids = _concatenated([part.token_ids for part in parts], np.int32)
        versions = _concatenated([part.versions for part in parts], np.int32)
        where = f"session {turn.request.session}"
        if (np.diff(versions) < 0).any():
            raise WrongAnswer(f"{where}: its servers' versions decrease within the turn: {versions.tolist()}")
        if len(ids) > turn.request.max_new_tokens:
            raise WrongAnswer(f"{where}: {len(ids)} tokens, {turn.request.max_new_tokens} were asked for")
        self._retractions += sum(part.retractions for part in parts)
        queue_s = sum(part.queue_s for part in parts)
        return Generation(
            token_ids=ids,
            logprobs=_concatenated([part.logprobs for part in parts], np.float32),
            versions=versions,
            finish_reason=reason,
            text=parts[0].text if len(parts) == 1 else None,
            cached_tokens=parts[0].cached_tokens if parts else 0,
            queue_s=queue_s,
            generate_s=max(0.0, sum(part.total_s for part in parts) - queue_s),
        )

    async def _answer(self, turn: _Turn, prompt: list[int], done: int) -> Reply | None:
        """The rest of the turn after ``done`` tokens; None when it was aborted before a server took it."""
        session, failures = turn.request.session, 0
        while True:
            member = await self._fleet.take(session, turn.aborted)
            if member is None or turn.aborted.is_set():
                return None
            turn.rid, turn.member = uuid4().hex, member
            try:
                raw = await self._fleet.ask(member, _body(turn, prompt, done))
                return parse_reply(raw, self._names, self._config.vocab_size, f"session {session}, {member.server.url}")
            except ServerGone as error:
                await self._fleet.doubt(member, error)
                failed: EngineError = error
            except ForeignWeights as error:
                self._fleet.lost(member, error)
                failed = error
            except ServerRefused as error:
                if error.status < 500:
                    raise
                failed = error
            failures += 1
            if failures > REISSUES:
                raise EngineError(f"session {session}: given up after {failures} servers failed: {failed.args[0]}") from failed
            self._reissued += 1

    async def _abort(self, turn: _Turn) -> None:
        while not turn.ended.is_set():
            if turn.member is not None:
                with suppress(EngineError):
                    await turn.member.server.abort(turn.rid)
            with suppress(TimeoutError):
                async with asyncio.timeout(ABORT_S):
                    await turn.ended.wait()

    async def _withdraw(self, turn: _Turn) -> None:
        """Nobody waits for the answer any more."""
        if turn.member is not None:
            with suppress(EngineError):
                await turn.member.server.abort(turn.rid)
                await asyncio.sleep(ABORT_S)
                await turn.member.server.abort(turn.rid)

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


def _concatenated(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _body(turn: _Turn, prompt: list[int], done: int) -> dict[str, Any]:
    request = turn.request
    stops = {"stop_token_ids": list(request.stop_token_ids)} if request.stop_token_ids else {"ignore_eos": True}
    sampling = {
        "temperature": request.sampling.temperature,
        "max_new_tokens": request.max_new_tokens - done,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        **stops,
    }
    return {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "rid": turn.rid}
