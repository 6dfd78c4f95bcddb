"""From what a model wrote for a call to a `ToolCall`: JSON values, typed text, and the reasons why something is no call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from agentrl.types import Json, ToolCall

Schemas = Mapping[str, Mapping[str, Json]]
"""JSON schema of the arguments by tool name."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """``reasoning``: the thinking that came first, its tags included; ``content``: the text outside of it and of calls,
    verbatim; ``calls``: in the order written, malformed ones included."""

    content: str
    calls: tuple[ToolCall, ...]
    reasoning: str = ""


class Malformed(Exception):
    """A call that can't be read. ``at``: where the reader of the turn may go on."""

    def __init__(self, reason: str, at: int, name: str = "") -> None:
        super().__init__(reason)
        self.at = at
        self.call = ToolCall(name, None, reason)


def skip_space(text: str, at: int) -> int:
    """Index of the first character from ``at`` on that is no white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def read_json(text: str, at: int) -> tuple[Json, int]:
    """The JSON value at ``at``, white space before it skipped, and the index after it: the value says where it ends."""
    at = skip_space(text, at)
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise Malformed("the JSON is nested too deeply", at) from None
    except ValueError as error:
        raise Malformed(f"not valid JSON: {error}", at) from None


def call_from(value: Json, key: str = "arguments") -> ToolCall:
    """The call that a JSON object with "name" and ``key`` describes; a malformed one says what is wrong with it."""
    if not isinstance(value, dict):
        return ToolCall("", None, f"a call is a JSON object, not {type(value).__name__}")
    return checked_call(value.get("name"), value.get(key, {}), key)


def checked_call(name: Json, arguments: Json, key: str = "arguments") -> ToolCall:
    """A call that can be run and stored, or one whose ``error`` says why it can't."""
    name = usable_name(name)
    if not name:
        return ToolCall("", None, 'the call has no "name"')
    if not isinstance(arguments, dict):
        return ToolCall(name, None, f'"{key}" is a JSON object, not {type(arguments).__name__}')
    problem = _unusable(arguments)
    return ToolCall(name, None, problem) if problem else ToolCall(name, arguments)


def usable_name(name: Json) -> str:
    """``name`` if it can be one, else an empty string."""
    return name if isinstance(name, str) and "\0" not in name and name.isprintable() else ""


def typed(raw: str, schema: Mapping[str, Json] | None) -> Json:
    """A value that was written as plain text, as the type that ``schema`` declares; the text itself where nothing else fits."""
    if schema is None or "string" in (types := _types(schema)):
        return raw
    text = raw.strip()
    words = {"True": "true", "False": "false", "None": "null"}
    try:
        value = json.loads(words.get(text, text), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return raw
    return value if not types or any(_is(value, kind) for kind in types) else raw


def _types(schema: Mapping[str, Json]) -> set[str]:
    declared = schema.get("type", [])
    types = {declared} if isinstance(declared, str) else set(declared)
    for choice in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        types |= _types(choice)
    return types


def _is(value: Json, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds: dict[str, type | tuple[type, ...]] = {
        "integer": int,
        "number": (int, float),
        "object": dict,
        "array": list,
        "null": type(None),
    }
    return kind in kinds and isinstance(value, kinds[kind])


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


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
