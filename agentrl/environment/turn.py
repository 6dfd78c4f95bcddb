"""The meaning of a turn, the same for a model's rollout and for a scripted demonstration.

- A truncated turn executes nothing, even when its text would parse.
- Any text is a legal turn: what can't be parsed or called is an observation.
- A sub-agent that failed fails the turn that started it.
- A turn that both ends the episode, by itself or by ``stop``, and spends the last of the turn budget is a natural end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.environment.base import Environment
from agentrl.environment.boundary import invoke, named_faults
from agentrl.environment.calls import plain_text
from agentrl.environment.code_places import defined_at
from agentrl.environment.episode import NO_SANDBOX, Episode, Step, Turn
from agentrl.errors import EnvironmentFault
from agentrl.tokens.call_values import ParsedTurn, Schemas
from agentrl.tokens.messages import Message
from agentrl.tokens.tool_calls import parse
from agentrl.types import Task, Termination, ToolCall, ToolResult
from sandboxes.contract import Sandbox


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """What the environment made of a turn. ``ended`` None: append ``messages`` and let the policy go on.

    An episode that a budget ended still has ``messages``: the observation from which credit may bootstrap.
    """

    messages: tuple[Message, ...]
    ended: Termination | None = None
    compacted: tuple[Message, ...] | None = None
    """The whole conversation from here on, in the place of everything before; ``messages`` are not appended then."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    reward: float | None = None
    tool_s: float = 0.0
    units: tuple[int, ...] | None = None
    """Positions in the turn's text at which units of credit begin; None: the turn is a unit."""


async def begin(
    environment: Environment,
    task: Task,
    *,
    seed: int = 0,
    sandbox: Sandbox | None = None,
    sandboxes: Mapping[str, Sandbox] | None = None,
) -> tuple[Episode, list[Message]]:
    """Set an episode up; returns it with the conversation that the policy starts from."""
    episode = Episode(task, sandbox or NO_SANDBOX, seed, sandboxes or {})
    await invoke(environment.name, task.id, "setup", environment.setup, episode, timeout_s=environment.max_seconds)
    episode.messages = first_messages(environment, task)
    return episode, list(episode.messages)


def first_messages(environment: Environment, task: Task) -> list[Message]:
    """The conversation that the policy starts from; `EnvironmentFault` when it is none."""
    with named_faults(environment.name, task.id, "messages"):
        messages = list(environment.messages(task))
    if not messages or not all(isinstance(message, Message) for message in messages):
        where = f"environment {environment.name!r}, task {task.id!r}"
        place = defined_at(environment.messages)
        raise EnvironmentFault(f"{where}: messages() must give one Message or more, not {messages!r:.200}{place}")
    return messages


async def take_turn(
    environment: Environment,
    episode: Episode,
    text: str,
    *,
    truncated: bool,
    read: Callable[[str, Schemas], ParsedTurn] = parse,
) -> TurnOutcome:
    """Let the environment answer the policy's ``text`` (stop token removed). ``truncated``: it was cut before a stop token.

    ``read`` finds reasoning and tool calls in the text; by default calls are written as ``<tool_call>{...}</tool_call>``.
    """
    if episode.ended is not None:
        raise ValueError(f"task {episode.task.id!r}: the episode has ended ({episode.ended}); it takes no further turn")
    try:
        outcome = await _take_turn(environment, episode, text, truncated=truncated, read=read)
    except Exception as error:
        if episode.failure is None or episode.failure is error:
            raise
        raise episode.failure from None
    if episode.failure is not None:
        raise episode.failure
    return outcome


async def _take_turn(
    environment: Environment, episode: Episode, text: str, *, truncated: bool, read: Callable[[str, Schemas], ParsedTurn]
) -> TurnOutcome:
    if truncated:
        episode.turns.append(Turn(text))
        await end(environment, episode, Termination.TRUNCATED_TURN_TOKENS)
        return TurnOutcome((), episode.ended)
    episode.read = read
    started = time.perf_counter()
    step = await _step(environment, episode, text)
    tool_s = time.perf_counter() - started
    messages, units = step.messages, episode.take_turn_units(text)
    compacted = None
    episode.turns.append(Turn(text, step.calls, step.results, messages))
    episode.messages += [Message("assistant", text), *messages]
    if step.done or await _stops(environment, episode):
        messages = ()
        await end(environment, episode, Termination.TERMINATED)
    elif episode.n_turns >= environment.max_turns:
        await end(environment, episode, Termination.TRUNCATED_TURNS)
    else:
        compacted = await _compacted(environment, episode)
    return TurnOutcome(messages, episode.ended, compacted, step.calls, step.results, episode.take_turn_reward(), tool_s, units)


async def end(environment: Environment, episode: Episode, termination: Termination) -> None:
    """Mark the episode as ended, while its sandbox still lives, and let the environment copy what grading needs."""
    episode.ended = termination
    await invoke(
        environment.name, episode.task.id, "finish", environment.finish, episode, timeout_s=environment.grade_timeout_s
    )


async def _step(environment: Environment, episode: Episode, text: str) -> Step:
    step = await invoke(
        environment.name, episode.task.id, "step", environment.step, episode, text, timeout_s=environment.max_seconds
    )
    where, place = f"environment {environment.name!r}, task {episode.task.id!r}", defined_at(environment.step)
    if not isinstance(step, Step):
        raise EnvironmentFault(f"{where}: step() must return a Step, not {type(step).__name__}{place}")
    if not all(isinstance(message, Message) for message in step.messages) or not (step.done or step.messages):
        raise EnvironmentFault(f"{where}: a Step that is not done has one Message or more, not {step.messages!r:.200}{place}")
    return step


async def _compacted(environment: Environment, episode: Episode) -> tuple[Message, ...] | None:
    if not environment.has_compact:
        return None
    answer = await invoke(
        environment.name, episode.task.id, "compact", environment.compact, episode, timeout_s=environment.tool_timeout_s
    )
    if answer is None:
        return None
    where = f"environment {environment.name!r}, task {episode.task.id!r}"
    if isinstance(answer, str) or not isinstance(answer, Sequence) or not all(isinstance(m, Message) for m in answer):
        raise EnvironmentFault(f"{where}: compact() must return Messages or None, not {answer!r:.200}")
    if not answer or answer[-1].role == "assistant":
        raise EnvironmentFault(f"{where}: compact() must return one Message or more, the last not of the assistant")
    episode.messages = [replace(message, content=plain_text(message.content)) for message in answer]
    return tuple(episode.messages)


async def _stops(environment: Environment, episode: Episode) -> bool:
    if not environment.has_stop:
        return False
    answer = await invoke(
        environment.name, episode.task.id, "stop", environment.stop, episode, timeout_s=environment.tool_timeout_s
    )
    if not isinstance(answer, bool):
        raise EnvironmentFault(
            f"environment {environment.name!r}, task {episode.task.id!r}: stop() must return True or False, not {answer!r:.100}"
            f"{defined_at(environment.stop)}"
        )
    return answer
