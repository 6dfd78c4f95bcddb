"""What a turn means unless an environment says otherwise: tool calls are run, any other text goes to ``respond``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentrl.environment.boundary import invoke
from agentrl.environment.calls import run_call, shown_text, wrong
from agentrl.environment.code_places import defined_at
from agentrl.environment.episode import Done, Episode, Step
from agentrl.errors import EnvironmentFault
from agentrl.tokens.call_values import ParsedTurn
from agentrl.tokens.messages import Message
from agentrl.types import ToolResult

if TYPE_CHECKING:
    from agentrl.environment.base import Environment


async def calls_or_respond(environment: Environment, episode: Episode, text: str) -> Step:
    """Run the calls in ``text``, each within ``tool_timeout_s``, or ask ``respond`` where there is none."""
    parsed = episode.read(text, {name: tool.parameters for name, tool in environment.tools.items()})
    if parsed.calls:
        return await _run_calls(environment, episode, parsed)
    return await _respond(environment, episode, parsed.content)


def tool_message(environment: Environment, result: ToolResult) -> Message:
    """How the policy reads a result. A name that the policy made up is not shown: templates write names as they are."""
    return Message("tool", result.text, name=result.name if result.name in environment.tools else "")


async def _respond(environment: Environment, episode: Episode, text: str) -> Step:
    answer = await invoke(
        environment.name, episode.task.id, "respond", environment.respond, episode, text, timeout_s=environment.tool_timeout_s
    )
    if isinstance(answer, Done):
        return Step(done=True)
    if isinstance(answer, str):
        return Step((Message("user", shown_text(answer, environment.max_result_chars)[0]),))
    if isinstance(answer, Message):
        return Step((answer,))
    raise EnvironmentFault(
        f"environment {environment.name!r}, task {episode.task.id!r}: respond() must return str, Message or Done, "
        f"not {type(answer).__name__}{defined_at(environment.respond)}"
    )


async def _run_calls(environment: Environment, episode: Episode, parsed: ParsedTurn) -> Step:
    calls = parsed.calls
    if environment.strict_calls and (len(calls) > 1 or parsed.content.strip()):
        result = wrong(environment, calls[0].name, "a turn is one tool call and nothing else")
        return Step((tool_message(environment, result),), False, calls, (result,))
    known = [environment.tools.get(call.name) for call in calls]
    if len(calls) > 1 and all(tool is None or tool.parallel for tool in known):
        answers = await asyncio.gather(*(run_call(environment, episode, call) for call in calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        pairs = [answer for answer in answers if not isinstance(answer, BaseException)]
    else:
        pairs = []
        for call in calls:
            pairs.append(await run_call(environment, episode, call))
            if pairs[-1][1]:
                break
    results = tuple(result for result, _ in pairs)
    messages = tuple(tool_message(environment, result) for result in results)
    return Step(messages, any(done for _, done in pairs), calls, results)
