"""Execution of one parsed tool call: what the policy gets to read, and what is a failure of ours instead.

A wrong call, a `ToolError` and a tool that takes too long are observations. A broken sandbox or environment raises.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.environment.boundary import Overtime, invoke
from agentrl.environment.code_places import defined_at
from agentrl.environment.episode import Done, Episode
from agentrl.environment.tools import ToolError, WrongCall
from agentrl.errors import EnvironmentFault
from agentrl.types import Json, ToolCall, ToolResult

if TYPE_CHECKING:
    from agentrl.environment.base import Environment

NO_OUTPUT = "(no output)"
"""Shown for empty or blank output: some chat templates and servers take an empty message for a missing one."""


def tool_call(name: str, /, **arguments: Json) -> str:
    """A call as the policy writes it: for demonstrations, gold solutions and tests."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def run_call(environment: Environment, episode: Episode, call: ToolCall) -> tuple[ToolResult, bool]:
    """The result of one call, and whether it ended the episode."""
    started = time.perf_counter()
    result, done = await _run(environment, episode, call)
    return replace(result, duration_s=time.perf_counter() - started), done


async def _run(environment: Environment, episode: Episode, call: ToolCall) -> tuple[ToolResult, bool]:
    tool = environment.tools.get(call.name)
    if call.arguments is None:
        return wrong(environment, call.name, call.error or "the call could not be parsed"), False
    if tool is None:
        return wrong(environment, call.name, f"no tool {call.name!r}; tools: {', '.join(environment.tools) or 'none'}"), False
    try:
        arguments = tool.validate(call.arguments)
    except WrongCall as error:
        return wrong(environment, call.name, str(error)), False
    if tool.side_effects:
        episode.retryable = False
    method = getattr(environment, call.name)
    # Bound here: a tool's parameters may have any names, those of `invoke` included.
    bound = partial(method, *((episode,) if tool.takes_episode else ()), **arguments)
    try:
        value = await invoke(
            environment.name,
            episode.task.id,
            call.name,
            bound,
            timeout_s=environment.tool_timeout_s,
            passing=(ToolError,),
        )
    except ToolError as error:
        return _result(environment, episode, call.name, str(error), is_error=True), False
    except Overtime:
        text = f"error: no answer within {environment.tool_timeout_s:g} s"
        return _result(environment, episode, call.name, text, is_error=True), False
    if isinstance(value, Done):
        return _result(environment, episode, call.name, value.text), True
    return _result(environment, episode, call.name, value), False


def wrong(environment: Environment, name: str, why: str) -> ToolResult:
    """The observation for a call that was not executed."""
    text, _ = shown_text(environment.wrong_call(why), environment.max_result_chars)
    return ToolResult(name, text, is_error=True)


def _result(environment: Environment, episode: Episode, name: str, value: Any, is_error: bool = False) -> ToolResult:
    try:
        text, raw = shown_text(value, environment.max_result_chars)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFault(
            f"environment {environment.name!r}, task {episode.task.id!r}: tool {name!r} returned {type(value).__name__}, "
            f"which is not text, bytes, None, Done or JSON: {error}{defined_at(getattr(environment, name))}"
        ) from error
    return ToolResult(name, text, is_error, raw=raw)


def plain_text(value: str | bytes) -> str:
    """Text that every file, database and tokenizer takes: stray bytes, half surrogate pairs and U+0000 become U+FFFD."""
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def shown_text(value: Any, max_chars: int) -> tuple[str, bytes | None]:
    """What the policy reads for a returned value, and the raw bytes behind it where they differ.

    Bytes are read as UTF-8, see `plain_text`; text longer than ``max_chars`` loses its middle. Raises TypeError, ValueError or
    RecursionError for what JSON can't hold.
    """
    if value is None:
        raw = b""
    elif isinstance(value, (bytes, bytearray)):
        raw = bytes(value)
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
    else:
        raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    text = plain_text(raw)
    if not text.strip():
        text = NO_OUTPUT
    elif len(text) > max_chars:
        head, tail = (max_chars + 1) // 2, max_chars // 2
        cut = len(text) - max_chars
        text = f"{text[:head]}\n... {cut} characters cut ...\n{text[len(text) - tail :]}"
    return text, (None if text.encode() == raw else raw)
