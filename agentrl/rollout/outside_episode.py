"""An episode that an outside agent program drives: its chat completions become segments with exact ids.

Invariants
- appended_is_exact: while the client only appends messages, the ids of a request are the ids stored so far; what was sampled
  is never encoded again.
- rewritten_is_a_context: a client that changed earlier messages or the tools opens a new context, whose prompt is encoded
  whole; nothing that was sampled before is trained twice.
- stored_before_answered: a turn is in the store before the client sees it; one whose write had no known outcome is written
  again before anything else happens.
- repeated_is_the_same: the request answered last, sent again, gets the same answer: clients repeat what they think was lost.
- no_trace_of_a_failure: a request that the engine failed, or answered with what can't have been sampled, changes nothing.
- truncated_is_no_call: a call in a turn that was cut is text.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentrl.engine.contract import Engine, GenerateRequest, Generation
from agentrl.errors import UsageError
from agentrl.rollout.chat_request import Call, ChatMessage, ChatRequest, Function, Said, said, to_messages
from agentrl.store.contract import TrajectoryStore
from agentrl.tokens.call_values import ParsedTurn
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.transcript import Transcript
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Json,
    Opened,
    Outcome,
    Place,
    Reward,
    Sampling,
    Segment,
    Termination,
    Timings,
    ToolCall,
)

GRADER = "gateway"


class ContextFull(UsageError):
    """The conversation has no room left in the model's context."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What one request is answered with."""

    message: ChatMessage
    finish_reason: str
    """``stop``, ``length`` or ``tool_calls``."""
    prompt_tokens: int
    completion_tokens: int
    context: int
    """Grows when the client rewrote what was said before."""


@dataclass
class OutsideEpisode:
    """One open episode; requests are answered one after another."""

    opened: Opened
    store: TrajectoryStore
    engine: Engine
    chat: ChatFormat
    sampling: Sampling
    transcript: Transcript = field(default_factory=Transcript)
    used_at: float = field(default_factory=time.monotonic)
    ended: bool = False
    _said: list[Said] = field(default_factory=list)
    _tools: list[dict[str, Json]] = field(default_factory=list)
    _answer: Completion | None = None
    _last_token: int | None = None
    _cut: Termination | None = None
    _unstored: Segment | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def busy(self) -> bool:
        """A request of the client is being answered."""
        return self._lock.locked()

    async def complete(self, request: ChatRequest) -> Completion:
        """Sample the next turn and store it. `UsageError` when the request can't be represented."""
        async with self._lock:
            self.used_at = time.monotonic()
            if self.ended:
                raise UsageError(f"episode {self.opened.trajectory} has ended")
            await self._store()
            now = [said(message) for message in request.messages]
            if self._answer is not None and now == self._said[:-1] and request.tools == self._tools:
                return self._answer
            try:
                return await self._turn(request, now)
            finally:
                self.used_at = time.monotonic()

    async def end(self, reward: float | None, success: bool | None, error: str | None) -> Place:
        """Complete the trajectory: with a verdict, without one (a reward worker's job), or as an infrastructure failure."""
        async with self._lock:
            if reward is not None and not math.isfinite(reward):
                raise UsageError(f"reward={reward}: a finite number is needed")
            if error is not None and reward is not None:
                raise UsageError("an episode ends with a reward or with an error, not with both")
            await self._store()
            self.ended = True
            self.engine.release(str(self.opened.trajectory))
            return await asyncio.to_thread(self.store.complete, self.opened, self._ending(reward, success, error))

    def _ending(self, reward: float | None, success: bool | None, error: str | None) -> EpisodeEnd:
        if error is not None:
            return EpisodeEnd(-1, Termination.FAILED, Outcome.INFRASTRUCTURE, error=error)
        verdict = None if reward is None else Reward(reward, success, GRADER)
        n = len(self.transcript.segments)
        return EpisodeEnd(n, self._cut or Termination.TERMINATED, Outcome.GRADED, verdict)

    def _observation(self, request: ChatRequest, now: Sequence[Said]) -> tuple[list[int], bool]:
        """Ids of what the client added, and whether they begin a context because they continue nothing."""
        known = len(self._said)
        new = request.messages[known:]
        appended = known > 0 and now[:known] == self._said and request.tools == self._tools
        if appended and new and all(message.role != "assistant" for message in new):
            history = to_messages(request.messages[:known])
            return self.chat.observation(history, to_messages(new), self._last_token), False
        return self.chat.prompt(to_messages(request.messages), request.tools), known > 0

    async def _turn(self, request: ChatRequest, now: list[Said]) -> Completion:
        observation, rewritten = self._observation(request, now)
        ids = observation if rewritten else self.transcript.token_ids + observation
        room = self.engine.info.max_context - len(ids)
        if room <= 0:
            self._cut = Termination.TRUNCATED_CONTEXT
            raise ContextFull(f"the conversation has {len(ids)} tokens, the model's context is {self.engine.info.max_context}")
        generation = await self.engine.generate(
            GenerateRequest(
                session=str(self.opened.trajectory),
                token_ids=ids,
                max_new_tokens=min(room, request.limit or room),
                stop_token_ids=self.chat.stop_token_ids,
                sampling=self.sampling,
                seed=(self.opened.seed * 1_000_003 + len(self.transcript.segments)) % (1 << 63),
            )
        )
        if generation.text is not None:
            self.chat.check_text(generation.token_ids.tolist(), generation.text)
        self.transcript.check(generation)
        # Only now: a request that got no answer leaves no trace, so that it can be made again.
        if rewritten:
            self.transcript.start_context()
        self.transcript.append_observation(observation)
        segment = self.transcript.append_action(generation)
        text = self.chat.decode_action(generation.token_ids.tolist())
        whole = generation.finish_reason is FinishReason.STOP
        parsed = self.chat.parse(text, _schemas(request.tools)) if whole else ParsedTurn(text, ())
        self._unstored = self._with_texts(segment, text, parsed.calls, generation)
        message = _answer(segment.index, text, parsed)
        self._said, self._tools = [*now, said(message)], request.tools
        self._last_token = int(generation.token_ids[-1]) if len(generation.token_ids) else None
        self._cut = None if whole else Termination.TRUNCATED_TURN_TOKENS
        reason = "length" if not whole else "tool_calls" if message.tool_calls else "stop"
        self._answer = Completion(message, reason, len(ids), len(generation.token_ids), segment.context)
        await self._store()
        return self._answer

    async def _store(self) -> None:
        if self._unstored is not None:
            await asyncio.to_thread(self.store.write_segment, self.opened, self._unstored)
            self._unstored = None

    def _with_texts(self, segment: Segment, text: str, calls: tuple[ToolCall, ...], generation: Generation) -> Segment:
        return replace(
            segment,
            observation_text=self.chat.decode(segment.observation.tolist()),
            action_text=text,
            tool_calls=calls,
            timings=Timings(generation.queue_s, generation.generate_s, 0.0),
        )


def _schemas(tools: Sequence[dict[str, Json]]) -> dict[str, dict[str, Json]]:
    """JSON schema of the arguments by tool name, of what the client declared well enough."""
    functions = [tool.get("function") for tool in tools]
    found = {f.get("name"): f.get("parameters") for f in functions if isinstance(f, dict)}
    return {name: schema for name, schema in found.items() if isinstance(name, str) and isinstance(schema, dict)}


def _answer(turn: int, text: str, parsed: ParsedTurn) -> ChatMessage:
    """The assistant's message; a turn with a call that could not be parsed is shown as the text it is."""
    calls = parsed.calls
    if not calls or any(call.arguments is None for call in calls):
        return ChatMessage(role="assistant", content=text)
    written = [
        Call(id=f"call_{turn}_{i}", function=Function(name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)))
        for i, call in enumerate(calls)
    ]
    return ChatMessage(role="assistant", content=parsed.reasoning + parsed.content or None, tool_calls=written)
