"""Tool calls whose arguments are plain text between tags or in code blocks. A tool's schema says what type a text stands for.

A closing tag inside a value is text: a value ends where its closing tag is followed by what may come next. Nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentrl.tokens.call_values import (
    Malformed,
    ParsedTurn,
    Schemas,
    call_from,
    checked_call,
    read_json,
    skip_space,
    typed,
)
from agentrl.tokens.json_calls import between_tags
from agentrl.types import Json, ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CODER_HEAD = re.compile(r"\s*<function=([^<>\n]+)>\s*")
_CODER_KEY = re.compile(r"<parameter=([^<>\n]+)>")
_CODER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_GLM_HEAD = re.compile(r"\s*([^<>\n{}]+?)\s*(?=<arg_key>|</tool_call>)")
_GLM_KEY = re.compile(r"<arg_key>([^<>]*)</arg_key>\s*<arg_value>")
_GLM_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n`]*\n", re.M)
_LANGUAGES = {"py": "python", "python3": "python", "sh": "bash", "shell": "bash", "zsh": "bash", "js": "javascript"}


def qwen3_coder(text: str, schemas: Schemas) -> ParsedTurn:
    """``<tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>``."""

    def read(text: str, at: int) -> tuple[ToolCall, int]:
        head = _CODER_HEAD.match(text, at)
        if head is None:
            raise Malformed("no <function=NAME> after <tool_call>", at)
        name = head[1].strip()
        arguments, at = _values(text, head.end(), name, _CODER_KEY, _CODER_END, _properties(schemas, name))
        if not text.startswith("</function>", at):
            raise Malformed("neither <parameter=KEY> nor </function>", at, name)
        return checked_call(name, arguments), at + len("</function>")

    return between_tags(text, _OPEN, _CLOSE, read)


def glm(text: str, schemas: Schemas) -> ParsedTurn:
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>...</tool_call>``."""

    def read(text: str, at: int) -> tuple[ToolCall, int]:
        head = _GLM_HEAD.match(text, at)
        if head is None:
            raise Malformed("no name after <tool_call>", at)
        name = head[1]
        arguments, at = _values(text, head.end(), name, _GLM_KEY, _GLM_END, _properties(schemas, name))
        return checked_call(name, arguments), at

    return between_tags(text, _OPEN, _CLOSE, read)


def _values(
    text: str, at: int, name: str, key: re.Pattern[str], end: re.Pattern[str], properties: Mapping[str, Json]
) -> tuple[dict[str, Json], int]:
    arguments: dict[str, Json] = {}
    while (opened := key.match(text, at)) is not None:
        closed = end.search(text, opened.end())
        if closed is None:
            raise Malformed(f"the value of {opened[1].strip()!r} is not closed", opened.end(), name)
        parameter = opened[1].strip()
        if parameter in arguments:
            raise Malformed(f"{parameter!r} is given twice", closed.end(), name)
        arguments[parameter] = typed(_unwrapped(text[opened.end() : closed.start()]), properties.get(parameter))
        at = skip_space(text, closed.end())
    return arguments, at


def _unwrapped(value: str) -> str:
    """Templates write a value on lines of its own; those two line ends are not part of it."""
    return value.removeprefix("\n").removesuffix("\n")


def fenced(text: str, schemas: Schemas) -> ParsedTurn:
    """Code blocks: of a language that is a tool's name, for the tool's one required parameter; or of JSON that is a call."""
    outside: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (opened := _FENCE.search(text, at)) is not None:
        closing = re.compile(rf"^{re.escape(opened['fence'])}{re.escape(opened['fence'][0])}*[ \t]*$", re.M)
        closed = closing.search(text, opened.end())
        end = closed.end() if closed else len(text)
        body = text[opened.end() : closed.start() if closed else end]
        call = _block_call(opened["language"], body, schemas)
        if call is None:
            outside.append(text[at:end])
        else:
            outside.append(text[at : opened.start()])
            calls.append(call if closed else ToolCall(call.name, None, f"the code block is not closed by {opened['fence']}"))
        at = end
    outside.append(text[at:])
    return ParsedTurn("".join(outside), tuple(calls))


def _block_call(language: str, body: str, schemas: Schemas) -> ToolCall | None:
    tool = language if language in schemas else _LANGUAGES.get(language.lower(), language.lower())
    if tool in schemas:
        required = schemas[tool].get("required", [])
        if len(required) == 1:
            return checked_call(tool, {required[0]: typed(body.removesuffix("\n"), _properties(schemas, tool)[required[0]])})
    if tool != "json":
        return None
    try:
        value, end = read_json(body, 0)
    except Malformed as error:
        return error.call if '"name"' in body else None
    whole = skip_space(body, end) == len(body)
    return call_from(value) if whole and isinstance(value, dict) and {"name", "arguments"} <= value.keys() else None


def _properties(schemas: Schemas, tool: str) -> Mapping[str, Json]:
    properties: Mapping[str, Json] = schemas.get(tool, {}).get("properties", {})
    return properties
