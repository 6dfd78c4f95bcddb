"""The meaning of a turn, the same for a model's rollout and for a scripted demonstration.

- A truncated turn executes nothing, even when its text would parse.
- Any text is a legal turn: what can't be parsed or called is an observation.
- A turn that both ends the episode and spends the last of the turn budget is a natural end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.environment.base import Environment
from agentrl.environment.boundary import invoke, named_faults
from agentrl.environment.calls import run_call, shown_text, wrong
from agentrl.environment.episode import NO_SANDBOX, Done, Episode, Turn
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
    environment: Environment, task: Task, *, seed: int = 0, sandbox: Sandbox | None = None
) -> tuple[Episode, list[Message]]:
    """Set an episode up; returns it with the conversation that the policy starts from."""
    episode = Episode(task, sandbox or NO_SANDBOX, seed)
    await invoke(environment.name, task.id, "setup", environment.setup, episode, timeout_s=environment.max_seconds)
    with named_faults(environment.name, task.id, "messages"):
        messages = list(environment.messages(task))
    if not messages or not all(isinstance(message, Message) for message in messages):
        where = f"environment {environment.name!r}, task {task.id!r}"
        raise EnvironmentFault(f"{where}: messages() must give one Message or more, not {messages!r:.200}")
    return episode, messages


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
    parsed = read(text, {name: tool.parameters for name, tool in environment.tools.items()})
    started = time.perf_counter()
    results: tuple[ToolResult, ...] = ()
    if parsed.calls:
        results, done = await _run_calls(environment, episode, parsed)
        messages = tuple(tool_message(environment, result) for result in results)
    else:
        messages, done = await _respond(environment, episode, parsed.content)
    tool_s = time.perf_counter() - started
    episode.turns.append(Turn(text, parsed.calls, results, messages))
    if done:
        messages = ()
        await end(environment, episode, Termination.TERMINATED)
    elif episode.n_turns >= environment.max_turns:
        await end(environment, episode, Termination.TRUNCATED_TURNS)
    return TurnOutcome(messages, episode.ended, parsed.calls, results, episode.take_turn_reward(), tool_s)


def tool_message(environment: Environment, result: ToolResult) -> Message:
    """How the policy reads a result. A name that the policy made up is not shown: templates write names as they are."""
    return Message("tool", result.text, name=result.name if result.name in environment.tools else "")


async def end(environment: Environment, episode: Episode, termination: Termination) -> None:
    """Mark the episode as ended, while its sandbox still lives, and let the environment copy what grading needs."""
    episode.ended = termination
    await invoke(
        environment.name, episode.task.id, "finish", environment.finish, episode, timeout_s=environment.grade_timeout_s
    )


async def _respond(environment: Environment, episode: Episode, text: str) -> tuple[tuple[Message, ...], bool]:
    answer = await invoke(
        environment.name, episode.task.id, "respond", environment.respond, episode, text, timeout_s=environment.tool_timeout_s
    )
    if isinstance(answer, Done):
        return (), True
    if isinstance(answer, str):
        return (Message("user", shown_text(answer, environment.max_result_chars)[0]),), False
    if isinstance(answer, Message):
        return (answer,), False
    raise EnvironmentFault(
        f"environment {environment.name!r}, task {episode.task.id!r}: respond() must return str, Message or Done, "
        f"not {type(answer).__name__}"
    )


async def _run_calls(environment: Environment, episode: Episode, parsed: ParsedTurn) -> tuple[tuple[ToolResult, ...], bool]:
    calls = parsed.calls
    if environment.strict_calls and (len(calls) > 1 or parsed.content.strip()):
        why = "a turn is one tool call and nothing else"
        return (wrong(environment, calls[0].name, why),), False
    known = [environment.tools.get(call.name) for call in calls]
    if len(calls) > 1 and all(tool is None or tool.parallel for tool in known):
        answers = await asyncio.gather(*(run_call(environment, episode, call) for call in calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        pairs = [answer for answer in answers if not isinstance(answer, BaseException)]
        return tuple(result for result, _ in pairs), any(done for _, done in pairs)
    results = []
    for call in calls:
        result, done = await run_call(environment, episode, call)
        results.append(result)
        if done:
            return tuple(results), True
    return tuple(results), False
