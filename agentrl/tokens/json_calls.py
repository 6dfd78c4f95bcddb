"""Tool calls whose arguments are JSON. A call ends where its JSON value ends, so tags and braces inside strings are text.

Nothing raises: what can't be read becomes a `ToolCall` with ``arguments=None`` and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentrl.tokens.call_values import (
    Malformed,
    ParsedTurn,
    Schemas,
    call_from,
    checked_call,
    read_json,
    skip_space,
    usable_name,
)
from agentrl.types import ToolCall

Read = Callable[[str, int], tuple[ToolCall, int]]
"""(text, index after the opening tag) to the call and the index after it; may raise `Malformed`."""

_KIMI_NAME = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?\Z", re.S)
_MISTRAL_HEAD = re.compile(r"\s*([^\[\]{}\s]+)\s*(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\])?\s*(?=\{)")
_LLAMA_TAG = "<|python_tag|>"


def between_tags(text: str, opening: str, closing: str, read: Read) -> ParsedTurn:
    """Every call that begins with ``opening``; after its body only white space and ``closing`` may come."""
    outside: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := text.find(opening, at)) >= 0:
        outside.append(text[at:start])
        try:
            call, end = read(text, start + len(opening))
            at = skip_space(text, end)
            if not text.startswith(closing, at):
                raise Malformed(f"no {closing} after the JSON value", end, call.name)
            at += len(closing)
        except Malformed as error:
            call, at = error.call, _after_malformed(text, error.at, opening, closing)
        calls.append(call)
    outside.append(text[at:])
    return ParsedTurn("".join(outside), tuple(calls))


def _after_malformed(text: str, start: int, opening: str, closing: str) -> int:
    """A malformed body ends after the next closing tag, or before the next opening tag, or with the text."""
    close = text.find(closing, start)
    following = text.find(opening, start)
    if following >= 0 and (close < 0 or following < close):
        return following
    return close + len(closing) if close >= 0 else len(text)


def hermes(text: str, schemas: Schemas) -> ParsedTurn:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

    def read(text: str, at: int) -> tuple[ToolCall, int]:
        value, end = read_json(text, at)
        return call_from(value), end

    return between_tags(text, "<tool_call>", "</tool_call>", read)


def kimi(text: str, schemas: Schemas) -> ParsedTurn:
    """``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`` in a section of such calls."""

    def read(text: str, at: int) -> tuple[ToolCall, int]:
        head, at = _head(text, at, "<|tool_call_argument_begin|>", "<|tool_call_end|>")
        match = _KIMI_NAME.match(head.strip())
        name = match[1] if match else ""
        return _named(text, at, name)

    turn = between_tags(text, "<|tool_call_begin|>", "<|tool_call_end|>", read)
    return _without(turn, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")


def deepseek(text: str, schemas: Schemas) -> ParsedTurn:
    """V3.1: ``NAME<sep>{...}``. V3 and R1: ``function<sep>NAME`` and the arguments in a JSON code block."""
    closing = "<｜tool▁call▁end｜>"

    def read(text: str, at: int) -> tuple[ToolCall, int]:
        name, at = _head(text, at, "<｜tool▁sep｜>", closing)
        if text.startswith("{", skip_space(text, at)):
            return _named(text, at, name.strip())
        line = text.find("\n", at)
        if line < 0:
            raise Malformed("no arguments after the name", at)
        name, at = text[at:line].strip(), skip_space(text, line)
        fenced = text.startswith("```json", at)
        call, end = _named(text, at + len("```json") * fenced, name)
        close = skip_space(text, end)
        return call, close + 3 if fenced and text.startswith("```", close) else end

    turn = between_tags(text, "<｜tool▁call▁begin｜>", closing, read)
    return _without(turn, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def mistral(text: str, schemas: Schemas) -> ParsedTurn:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or ``[TOOL_CALLS]NAME[ARGS]{...}`` per call."""
    opening = "[TOOL_CALLS]"
    outside: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := text.find(opening, at)) >= 0:
        outside.append(text[at:start])
        body = skip_space(text, start + len(opening))
        try:
            found, at = _mistral_calls(text, body)
            calls += found
        except Malformed as error:
            calls.append(error.call)
            following = text.find(opening, error.at)
            at = following if following >= 0 else len(text)
    outside.append(text[at:])
    return ParsedTurn("".join(outside), tuple(calls))


def _mistral_calls(text: str, at: int) -> tuple[list[ToolCall], int]:
    if text.startswith("[", at):
        value, end = read_json(text, at)
        return [call_from(item) for item in value], end
    head = _MISTRAL_HEAD.match(text, at)
    if head is None:
        raise Malformed("neither a JSON list nor NAME[ARGS]{...} after [TOOL_CALLS]", at)
    call, end = _named(text, head.end(), head[1])
    return [call], end


def llama3_json(text: str, schemas: Schemas) -> ParsedTurn:
    """A turn that begins with JSON objects of "name" and "parameters"; between them space, ``;`` or ``,``.

    A turn that begins with other JSON is an answer in JSON, not a call.
    """
    calls: list[ToolCall] = []
    at = skip_space(text, 0)
    while text.startswith(("{", _LLAMA_TAG), at):
        tagged = text.startswith(_LLAMA_TAG, at)
        start = at + len(_LLAMA_TAG) * tagged
        try:
            value, end = read_json(text, start)
        except Malformed as error:
            if not tagged and '"name"' not in text[at:]:
                break
            return ParsedTurn("", (*calls, error.call))
        key = "parameters" if isinstance(value, dict) and "parameters" in value else "arguments"
        if not tagged and not (isinstance(value, dict) and "name" in value and key in value):
            break
        calls.append(call_from(value, key))
        at = skip_space(text, end)
        while text.startswith((";", ","), at):
            at = skip_space(text, at + 1)
    return ParsedTurn(text[at:] if calls else text, tuple(calls))


def _head(text: str, at: int, separator: str, closing: str) -> tuple[str, int]:
    """What stands before ``separator``, and the index after it."""
    end = text.find(separator, at)
    close = text.find(closing, at)
    if end < 0 or 0 <= close < end:
        raise Malformed(f"no {separator} after the name", at)
    return text[at:end], end + len(separator)


def _named(text: str, at: int, name: str) -> tuple[ToolCall, int]:
    try:
        arguments, end = read_json(text, at)
    except Malformed as error:
        raise Malformed(str(error), error.at, usable_name(name)) from None
    return checked_call(name, arguments), end


def _without(turn: ParsedTurn, *marks: str) -> ParsedTurn:
    content = turn.content
    for mark in marks:
        content = content.replace(mark, "")
    return ParsedTurn(content, turn.calls)
