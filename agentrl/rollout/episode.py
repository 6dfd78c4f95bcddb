"""One episode: prompt, turns, tool calls, grading, each turn stored as it ends.

Invariants
- token_truth: the ids of a request are the ids stored so far; what the engine sampled is stored as it came.
- outcome_classes: a broken sandbox, engine or grader is an infrastructure failure with no reward; a budget that ran out is a
  truncation; a parse error is an observation.
- no_unasked_repetition: an episode that called a tool not declared ``side_effects=False`` is never run again, however it ended.
- continued_is_the_same: an episode that another worker left goes on from its last stored turn only when doing its calls again
  in a clean sandbox gives the observations that are stored; else it fails, and its seat starts again.
- grader_out_of_reach: grading happens after the policy's sandbox was given back, in another one that was reset, here or in a
  reward worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np

from agentrl.engine.contract import Engine, GenerateRequest, Generation
from agentrl.environment.base import Environment
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.episode import Episode
from agentrl.environment.evidence import pack
from agentrl.environment.grading import grade, is_gradable
from agentrl.environment.sub_agents import offer
from agentrl.environment.turn import TurnOutcome, begin, end, take_turn
from agentrl.errors import EngineError, EnvironmentFault, TokenDrift, UsageError
from agentrl.rollout.sub_agents import Family, Starter, Write
from agentrl.rollout.time_budget import TimeBudget
from agentrl.store.contract import TrajectoryStore
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.history import History
from agentrl.tokens.messages import Message
from agentrl.tokens.transcript import Transcript
from agentrl.tokens.unit_marks import unit_starts
from agentrl.types import EpisodeEnd, FinishReason, Opened, Outcome, Reward, Sampling, Segment, Task, Termination, Timings
from sandboxes.contract import SandboxError, SandboxPool

_INFRASTRUCTURE = (SandboxError, EngineError, EnvironmentFault, TokenDrift)


@dataclass
class EpisodeRunner:
    """Runs episodes of one environment; one object serves many at once."""

    environment: Environment
    store: TrajectoryStore
    engine: Engine
    chat: ChatFormat
    pool: SandboxPool
    sampling: Sampling
    grades: bool = True
    """False: reward workers do; an ended episode is stored with what they need."""
    sandbox_of: Callable[[Task], Awaitable[str]] | None = None
    """What the sandboxes of a task are made from; None: it is the same for all, and stands in the trajectory from its start."""
    sampled_tokens: int = 0
    episodes: int = 0
    rewrites: int = 0
    """Contexts that opened because the chat template rewrote the history."""
    compactions: int = 0
    """Contexts that opened because the environment rewrote the history."""
    sub_agents: int = 0
    continued: int = 0
    """Episodes that another worker began."""
    reward_s: float = 0.0
    tool_s: float = 0.0
    causes: dict[UUID, Exception] = field(default_factory=dict)
    """What made a trajectory fail, until somebody takes it."""
    unrepeatable: set[UUID] = field(default_factory=set)
    """Trajectories that were cut off, by a stop or by an unforeseen error, after a call that must not be repeated."""

    def __post_init__(self) -> None:
        self._queue = queue_for(self.pool)

    async def run(self, opened: Opened) -> EpisodeEnd:
        """Run the episode and complete it in the store; returns how it ended."""
        episode: Episode | None = None
        sandbox: str | None = None
        family = Family(opened, self._converse)
        try:
            sandbox = await self.sandbox_of(opened.task) if self.sandbox_of else None
            async with boxes_of(self.environment, opened.task, self._queue) as boxes:
                episode, _ = await begin(
                    self.environment, opened.task, seed=opened.seed, sandbox=boxes.main, sandboxes=boxes.others
                )
                ending = await self._act(opened, episode, family)
            ending = await self._graded(episode, ending, family)
        except _INFRASTRUCTURE as error:
            self.causes[opened.trajectory] = error
            ending = EpisodeEnd(
                n_segments=-1,
                termination=Termination.FAILED,
                outcome=Outcome.INFRASTRUCTURE,
                error=f"{type(error).__name__}: {error}",
                retryable=episode.retryable if episode else True,
            )
        except BaseException:
            if episode is not None and not episode.retryable:
                self.unrepeatable.add(opened.trajectory)
            raise
        ending = replace(ending, sandbox=sandbox)
        await self._complete(opened, ending)
        self.episodes += 1
        return ending

    async def _complete(self, opened: Opened, ending: EpisodeEnd) -> None:
        """A cancellation comes too late now: what the episode earned is stored."""
        completing = asyncio.create_task(asyncio.to_thread(self.store.complete, opened, ending))
        try:
            await asyncio.shield(completing)
        except asyncio.CancelledError:
            await completing

    async def _act(self, opened: Opened, episode: Episode, family: Family) -> EpisodeEnd:
        async def write(segment: Segment) -> None:
            await asyncio.to_thread(self.store.write_segment, opened, segment, family.take())

        turns: Sequence[Segment] = ()
        if opened.n_segments:
            stored = await asyncio.to_thread(self.store.trajectory, opened.trajectory)
            assert stored is not None, f"trajectory {opened.trajectory} was opened and is gone"
            self.continued += 1
            family.stored = {child.seat: child for child in stored.sub_agents}
            turns = [segment for segment in stored.segments[: opened.n_segments] if segment.n_act]
        seconds = self.environment.max_seconds
        return await self._converse(opened, self.environment, episode, family, stored=turns, write=write, seconds=seconds)

    async def _converse(
        self,
        opened: Opened,
        environment: Environment,
        episode: Episode,
        family: Family,
        *,
        stored: Sequence[Segment],
        write: Write,
        seconds: float,
    ) -> EpisodeEnd:
        """The turns of the episode, or of one of its sub-agents."""
        history = History(self.chat, episode.messages, environment.tool_schemas())
        conversation = _Conversation(self, environment, opened, episode, history, family, write, seconds, stored)
        offer(environment, episode, Starter(family, opened.trajectory, episode, conversation.left))
        self.sub_agents += opened.trajectory != family.opened.trajectory
        try:
            return await conversation.act()
        finally:
            self.engine.release(str(opened.trajectory))  # not after grading: an engine waits for sessions that may go on

    def metrics(self) -> dict[str, float]:
        """Totals since the start, the engine's too, and the pool's gauges."""
        totals = {"episodes": self.episodes, "sampled_tokens": self.sampled_tokens}
        totals |= {"rewritten_contexts": self.rewrites, "compacted_contexts": self.compactions}
        totals |= {"continued_episodes": self.continued, "sub_agents": self.sub_agents}
        seconds = {"reward_s": round(self.reward_s, 2), "tool_s": round(self.tool_s, 2)}
        engine = {f"engine_{name}": total for name, total in self.engine.metrics().items()}
        sandboxes = {f"sandbox_{name}": round(value, 4) for name, value in self.pool.metrics().items()}
        return {**totals, **seconds, **engine, **sandboxes}

    async def _graded(self, episode: Episode, ending: EpisodeEnd, family: Family) -> EpisodeEnd:
        if not is_gradable(self.environment, ending.termination):
            return ending
        if not self.grades:
            evidence = await asyncio.to_thread(pack, self.environment.name, episode)
            return replace(ending, outcome=Outcome.GRADED, evidence=evidence)
        began = time.monotonic()
        reward = await self._grade(episode)
        self.reward_s += time.monotonic() - began
        return replace(ending, outcome=Outcome.GRADED, reward=reward, verdicts=family.verdicts(self.environment))

    async def _grade(self, episode: Episode) -> Reward:
        async with boxes_of(self.environment, episode.task, self._queue, grading=True) as boxes:
            return await grade(self.environment, episode, boxes.main, boxes.others)


@dataclass
class _Conversation:
    """The turns of one episode, or of a sub-agent."""

    runner: EpisodeRunner
    environment: Environment
    opened: Opened
    episode: Episode
    history: History
    family: Family
    write: Write
    seconds: float
    """Wall clock that it may take."""
    stored: Sequence[Segment] = ()
    """Turns that another worker sampled and stored."""
    transcript: Transcript = field(default_factory=Transcript)
    clock: TimeBudget = field(init=False)

    def __post_init__(self) -> None:
        self.clock = TimeBudget(self.seconds, self.environment.max_turn_seconds)

    async def act(self) -> EpisodeEnd:
        """Turn after turn until something ends the episode; each turn is stored before the next begins."""
        environment = self.environment
        self.episode.max_context = self.runner.engine.info.max_context
        self.history.open(self.transcript)
        while True:
            ended = self._exhausted()
            if ended is not None:
                await end(environment, self.episode, ended)
                return await self._ending(ended)
            known = self._stored_turn()
            generation, budget = await self._generate() if known is None else self._sampled_before(known)
            truncated = generation.finish_reason is not FinishReason.STOP
            ids = generation.token_ids.tolist()
            if generation.text is not None:
                self.runner.chat.check_text(ids, generation.text)
            segment = self.transcript.append_action(generation)
            text = self.runner.chat.decode_action(ids)
            self.episode.context_tokens = self.transcript.n_context
            outcome = await take_turn(environment, self.episode, text, truncated=truncated, read=self.runner.chat.parse)
            if known is None:
                await self._store(segment, text, outcome, generation)
            elif self.family.take():
                where = f"trajectory {self.opened.trajectory}, segment {segment.index}"
                raise TokenDrift(f"{where}: doing the stored calls again started sub-agents that are not stored")
            ended = budget if truncated else outcome.ended
            self.history.act(text, ids)
            if outcome.compacted is not None:
                self._compact(outcome.compacted)
            elif outcome.messages and ended is not Termination.TERMINATED:
                self.runner.rewrites += self.history.observe(self.transcript, outcome.messages)
            if ended is not None:
                self.episode.ended = ended
                return await self._ending(ended)

    def left(self) -> float:
        """Seconds."""
        return self.clock.left()[0]

    def _compact(self, messages: Sequence[Message]) -> None:
        try:
            self.history.compact(self.transcript, messages)
        except UsageError as error:
            where = f"environment {self.environment.name!r}, task {self.opened.task.id!r}"
            raise EnvironmentFault(f"{where}: compact() gave messages that can't be written: {error}") from error
        self.runner.compactions += 1

    def _room(self) -> tuple[int, Termination]:
        """Tokens left, and the budget that is the tighter one."""
        tokens = self.environment.max_tokens - self.transcript.n_tokens
        context = self.runner.engine.info.max_context - self.transcript.n_context
        return min((tokens, Termination.TRUNCATED_TOKENS), (context, Termination.TRUNCATED_CONTEXT), key=lambda pair: pair[0])

    def _exhausted(self) -> Termination | None:
        room, budget = self._room()
        return budget if room <= 0 else self.clock.spent()

    def _limit(self) -> tuple[int, Termination]:
        """Tokens that this turn may have, and the budget that is spent with them."""
        return min(self._room(), (self.environment.max_turn_tokens, Termination.TRUNCATED_TURN_TOKENS), key=_by_tokens)

    def _stored_turn(self) -> Segment | None:
        """The turn to come when it is stored already; `TokenDrift` when its observation came out differently this time."""
        index = len(self.transcript.segments)
        if index >= len(self.stored):
            return None
        known = self.stored[index]
        if not np.array_equal(self.transcript.pending, known.observation):
            raise TokenDrift(
                f"trajectory {self.opened.trajectory}, segment {index}: doing the stored calls again gave another observation "
                f"than the stored one, so the episode can't be continued: {self.environment.name!r} is not deterministic"
            )
        return known

    def _sampled_before(self, turn: Segment) -> tuple[Generation, Termination]:
        """The stored turn as it was answered; why it was aborted, if it was, died with its worker."""
        assert turn.finish_reason is not None
        aborted = turn.finish_reason is FinishReason.ABORT
        budget = Termination.ABORTED if aborted else self._limit()[1]
        return Generation(turn.action, turn.logprobs, turn.versions, turn.finish_reason), budget

    async def _generate(self) -> tuple[Generation, Termination]:
        room, budget = self._limit()
        request = GenerateRequest(
            session=str(self.opened.trajectory),
            token_ids=self.transcript.token_ids,
            max_new_tokens=room,
            stop_token_ids=self.runner.chat.stop_token_ids,
            sampling=self.runner.sampling,
            seed=_turn_seed(self.opened.seed, self.episode.n_turns),
        )
        self.clock.begin_turn()
        generation, late = await self._in_time(request)
        self.runner.sampled_tokens += len(generation.token_ids)
        if generation.finish_reason is FinishReason.ABORT:
            budget = late or Termination.ABORTED
        return generation, budget

    async def _in_time(self, request: GenerateRequest) -> tuple[Generation, Termination | None]:
        """The engine's answer, and the time budget that cut it short, if one did."""
        left, budget = self.clock.left()
        running = asyncio.ensure_future(self.runner.engine.generate(request))
        try:
            done, _ = await asyncio.wait({running}, timeout=max(left, 0.0))
            if not done:
                self.runner.engine.release(request.session)
            return await running, None if done else budget
        finally:
            running.cancel()

    async def _store(self, segment: Segment, text: str, outcome: TurnOutcome, generation: Generation) -> None:
        self.runner.tool_s += outcome.tool_s
        stored = replace(
            segment,
            observation_text=self.runner.chat.decode(segment.observation.tolist()),
            action_text=text,
            tool_calls=outcome.calls,
            tool_results=outcome.results,
            reward=outcome.reward,
            unit_starts=self._unit_starts(segment, outcome),
            timings=Timings(generation.queue_s, generation.generate_s, outcome.tool_s),
        )
        await self.write(stored)

    def _unit_starts(self, segment: Segment, outcome: TurnOutcome) -> np.ndarray | None:
        if outcome.units is None:
            return None
        return unit_starts(self.runner.chat.decode_action, segment.action.tolist(), outcome.units)

    async def _ending(self, termination: Termination) -> EpisodeEnd:
        """Store the state after the last turn where a budget ended the episode.

        Credit may bootstrap from it, and it tells an episode that was to go on from one that ended by itself.
        """
        if termination is not Termination.TERMINATED and self._room()[0] >= 0:
            last = self.transcript.close()
            if last is not None:
                text = self.runner.chat.decode(last.observation.tolist())
                await self.write(replace(last, observation_text=text))
        outcome = Outcome.INFRASTRUCTURE if termination.is_error() else Outcome.POLICY_ENDED
        return EpisodeEnd(len(self.transcript.segments), termination, outcome, retryable=self.episode.retryable)


def _by_tokens(limit: tuple[int, Termination]) -> tuple[int, bool]:
    return limit[0], limit[1] is not Termination.TRUNCATED_TURN_TOKENS


def _turn_seed(episode_seed: int, turn: int) -> int:
    return (episode_seed * 1_000_003 + turn) % (1 << 63)
