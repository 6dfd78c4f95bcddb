"""Tool calls in a model's text, Hermes/Qwen form: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

Any string is a legal turn. What can't be parsed becomes a `ToolCall` with ``arguments=None`` and the reason; nothing raises.
A call's body ends where its JSON value ends, so a closing tag inside a JSON string is just text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

from agentrl.types import Json, ToolCall

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """``content``: the text outside of calls, verbatim; ``calls``: in the order written, malformed ones included."""

    content: str
    calls: tuple[ToolCall, ...]


def parse(text: str) -> ParsedTurn:
    """Split a turn's text (without its stop token) into content and calls."""
    outside: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        outside.append(text[at:start])
        call, at = _parse_call(text, start + len(OPEN))
        calls.append(call)
    outside.append(text[at:])
    return ParsedTurn("".join(outside), tuple(calls))


def _parse_call(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose body starts at ``start``, and the index after its closing tag."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        return _malformed("the JSON is nested too deeply"), _after_malformed(text, start)
    except ValueError as error:
        return _malformed(f"not valid JSON: {error}"), _after_malformed(text, start)
    close = end
    while close < len(text) and text[close].isspace():
        close += 1
    if not text.startswith(CLOSE, close):
        return _malformed(f"no {CLOSE} after the JSON value", _name_of(value)), _after_malformed(text, end)
    return _checked_call(value), close + len(CLOSE)


def _after_malformed(text: str, start: int) -> int:
    """A malformed body ends after the next closing tag, or before the next opening tag, or with the text."""
    close = text.find(CLOSE, start)
    following = text.find(OPEN, start)
    if following >= 0 and (close < 0 or following < close):
        return following
    return close + len(CLOSE) if close >= 0 else len(text)


def _checked_call(value: Json) -> ToolCall:
    name = _name_of(value)
    if not isinstance(value, dict):
        return _malformed(f"a call is a JSON object, not {type(value).__name__}")
    if not name:
        return _malformed('the call has no "name"')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return _malformed(f'"arguments" is a JSON object, not {type(arguments).__name__}', name)
    problem = _unusable(value)
    return _malformed(problem, name) if problem else ToolCall(name, arguments)


def _unusable(value: Json) -> str | None:
    """Why a parsed value can't be passed on: files, processes and databases take neither of these."""
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        written.encode()
        holds_nul = "\\u0000" in written and _holds_nul(value)
    except RecursionError:
        return "the JSON is nested too deeply"
    except UnicodeEncodeError:
        return "a string holds half of a surrogate pair"
    except ValueError:
        return "a number is out of range"
    return "a string holds the character U+0000" if holds_nul else None


def _holds_nul(value: Json) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_holds_nul, value))


def _name_of(value: Json) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and "\0" not in name and name.isprintable() else ""


def _malformed(error: str, name: str = "") -> ToolCall:
    return ToolCall(name, None, error)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
