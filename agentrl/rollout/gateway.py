"""The gateway: outside agent programs that speak chat completions produce trajectories.

    POST /episodes                                 open an episode: its id, its task and the base URL for the agent's client
    POST /episodes/ID/v1/chat/completions          one turn, in the form of OpenAI's API
    GET  /episodes/ID/v1/models
    POST /episodes/ID/end                          {"reward": 1.0, "success": true} or {"error": "what broke"}
    GET  /health

Invariants
- one_trajectory: an episode is opened by the store's admission and ends in exactly one place.
- abandoned_is_infrastructure: an agent that is silent for ``idle_s`` seconds failed; that is no verdict on the policy. One that
  waits for its answer is not silent.
- clean_release: a stop completes open episodes as aborted, which costs them no attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentrl.engine.contract import Engine
from agentrl.errors import AgentRLError, EngineError, StoreError, UnknownOutcome, UsageError
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.chat_request import parse_request
from agentrl.rollout.chat_response import as_completion, as_stream
from agentrl.rollout.outside_episode import ContextFull, OutsideEpisode
from agentrl.store.contract import RunRow, TrajectoryStore
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import EpisodeEnd, Lineage, Outcome, Sampling, Termination

SWEEP_S = 1.0


class _NoEpisode(UsageError):
    """The client names an episode that is not open here."""


class EndRequest(BaseModel):
    """How the agent program says that an episode is over."""

    model_config = ConfigDict(extra="forbid")

    reward: float | None = None
    success: bool | None = None
    error: str | None = None


@dataclass
class Gateway:
    """Open episodes of one run and the routes that drive them."""

    store: TrajectoryStore
    run: RunRow
    name: str
    engine: Engine
    chat: ChatFormat
    sampling: Sampling
    lineage: Lineage
    concurrency: int
    idle_s: float
    log: ProcessLog
    open: dict[UUID, OutsideEpisode] = field(default_factory=dict)
    refusal: str | None = None

    def app(self) -> Starlette:
        """The web application."""
        completions = "/episodes/{id:uuid}/v1/chat/completions"
        return Starlette(
            routes=[
                Route("/episodes", self._told(self._open), methods=["POST"]),
                Route(completions, self._told(self._complete), methods=["POST"]),
                Route("/episodes/{id:uuid}/v1/models", self._told(self._models), methods=["GET"]),
                Route("/episodes/{id:uuid}/end", self._told(self._end), methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ]
        )

    def held(self) -> dict[UUID, int]:
        """Open trajectories and their fences."""
        return {trajectory: episode.opened.fence for trajectory, episode in self.open.items()}

    def lost(self, trajectory: UUID) -> None:
        """Forget an episode whose row went to somebody else."""
        if self.open.pop(trajectory, None) is not None:
            self.log.warning("lease lost", trajectory=str(trajectory))

    def starved(self) -> bool:
        return self.refusal == "no_capacity" and not self.open

    async def sweep(self) -> None:
        """Fail what was abandoned, for ever."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self.idle_s))
            now = time.monotonic()
            for trajectory, episode in list(self.open.items()):
                if not episode.busy and now - episode.used_at > self.idle_s:
                    await self._fail(trajectory, f"the agent program was silent for {self.idle_s:g} s")

    def cut_off(self) -> None:
        """End the turns that are under way, as far as the engine can."""
        for trajectory in self.open:
            self.engine.release(str(trajectory))

    async def release(self) -> None:
        """Complete everything that is open as aborted."""
        end = EpisodeEnd(-1, Termination.ABORTED, Outcome.INFRASTRUCTURE, error="the gateway was stopped")
        while self.open:
            _, episode = self.open.popitem()
            episode.ended = True
            try:
                await asyncio.to_thread(self.store.complete, episode.opened, end)
            except StoreError as error:
                self.log.warning("completion refused", trajectory=str(episode.opened.trajectory), error=str(error))

    async def _fail(self, trajectory: UUID, error: str) -> None:
        episode = self.open.pop(trajectory, None)
        if episode is None:  # it ended, or its row went to somebody else, while others of the sweep were completed
            return
        self.log.warning("episode failed", trajectory=str(trajectory), error=error)
        try:
            await episode.end(None, None, error)
        except StoreError as refused:
            self.log.warning("completion refused", trajectory=str(trajectory), error=str(refused))

    def _told(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Errors as the client of such an API expects them."""

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except ContextFull as error:
                return _error(400, "context_length_exceeded", error)
            except _NoEpisode as error:
                return _error(404, "no_such_episode", error)
            except UsageError as error:
                return _error(400, "invalid_request", error)
            except EngineError as error:
                return _error(503, "engine_error", error)
            except UnknownOutcome as error:
                return _error(503, "store_unreachable", error)
            except StoreError as error:
                if "id" not in request.path_params:
                    return _error(503, "store_refused", error)
                self.open.pop(request.path_params["id"], None)
                return _error(410, "episode_lost", error)

        return handled

    async def _open(self, request: Request) -> Response:
        if len(self.open) >= self.concurrency:
            return _error(429, "too_many_episodes", f"{self.concurrency} episodes are open already", retry=True)
        opened = await asyncio.to_thread(
            self.store.open_episodes,
            self.run.id, worker=self.name, request=uuid4(), n=1, engine_version=self.engine.version, lineage=self.lineage,
        )  # fmt: skip
        self.refusal = opened.refusal
        if not opened.episodes:
            return _error(429, opened.refusal or "no_capacity", f"the store opens nothing now: {opened.refusal}", retry=True)
        (episode,) = opened.episodes
        self.open[episode.trajectory] = OutsideEpisode(episode, self.store, self.engine, self.chat, self.sampling)
        return JSONResponse(
            {
                "episode": str(episode.trajectory),
                "task": {"id": episode.task.id, "split": episode.task.split, "payload": dict(episode.task.payload)},
                "seed": episode.seed,
                "base_url": f"{str(request.base_url).rstrip('/')}/episodes/{episode.trajectory}/v1",
            },
            status_code=201,
        )

    def _episode(self, request: Request) -> OutsideEpisode:
        episode = self.open.get(request.path_params["id"])
        if episode is None:
            raise _NoEpisode(f"no open episode {request.path_params['id']}: POST /episodes opens one")
        return episode

    async def _complete(self, request: Request) -> Response:
        episode = self._episode(request)
        asked = parse_request(await request.body(), self.sampling.temperature)
        answer = await episode.complete(asked)
        model = self.lineage.model
        if asked.stream:
            return StreamingResponse(as_stream(answer, model), media_type="text/event-stream")
        return JSONResponse(as_completion(answer, model))

    async def _models(self, request: Request) -> Response:
        self._episode(request)
        return JSONResponse({"object": "list", "data": [{"id": self.lineage.model, "object": "model", "owned_by": "agentrl"}]})

    async def _end(self, request: Request) -> Response:
        episode = self._episode(request)
        try:
            said = EndRequest.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
        place = await episode.end(said.reward, said.success, said.error)
        self.open.pop(episode.opened.trajectory, None)
        return JSONResponse({"episode": str(episode.opened.trajectory), "place": place.value})

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"run": self.run.spec.name, "policy_version": self.engine.version, "open_episodes": len(self.open)})


def _error(status: int, code: str, message: AgentRLError | str, *, retry: bool = False) -> Response:
    headers = {"retry-after": "1"} if retry else None
    body = {"error": {"message": str(message), "type": code, "code": code, "param": None}}
    return JSONResponse(body, status_code=status, headers=headers)
