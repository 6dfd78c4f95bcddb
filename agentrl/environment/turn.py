"""The meaning of a turn, the same for a model's rollout and for a scripted demonstration.

- A truncated turn executes nothing, even when its text would parse.
- Any text is a legal turn: what can't be parsed or called is an observation.
- A turn that both ends the episode, by itself or by ``stop``, and spends the last of the turn budget is a natural end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentrl.environment.base import Environment
from agentrl.environment.boundary import invoke, named_faults
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
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    reward: float | None = None
    tool_s: float = 0.0


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
    return episode, first_messages(environment, task)


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
    if truncated:
        episode.turns.append(Turn(text))
        await end(environment, episode, Termination.TRUNCATED_TURN_TOKENS)
        return TurnOutcome((), episode.ended)
    episode.read = read
    started = time.perf_counter()
    step = await _step(environment, episode, text)
    tool_s = time.perf_counter() - started
    messages = step.messages
    episode.turns.append(Turn(text, step.calls, step.results, messages))
    if step.done or await _stops(environment, episode):
        messages = ()
        await end(environment, episode, Termination.TERMINATED)
    elif episode.n_turns >= environment.max_turns:
        await end(environment, episode, Termination.TRUNCATED_TURNS)
    return TurnOutcome(messages, episode.ended, step.calls, step.results, episode.take_turn_reward(), tool_s)


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
