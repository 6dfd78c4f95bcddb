"""Tool calls in a model's text: the formats, reading a turn in one of them, and finding out which one a chat template writes.

Any string is a legal turn. What can't be read becomes a `ToolCall` with ``arguments=None`` and the reason; nothing raises.
Calls are read from the answer alone: one inside of reasoning was thought of, not made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.errors import UsageError
from agentrl.tokens.call_values import ParsedTurn, Schemas, checked_call
from agentrl.tokens.json_calls import deepseek, hermes, kimi, llama3_json, mistral
from agentrl.tokens.reasoning import answer_start
from agentrl.tokens.text_calls import fenced, glm, qwen3_coder
from agentrl.types import Json, ToolCall, ToolFormat

Reader = Callable[[str, Schemas], ParsedTurn]
"""(answer without its stop token, schemas of the tools) to content and calls."""

READERS: Mapping[ToolFormat, Reader] = {
    ToolFormat.HERMES: hermes,
    ToolFormat.QWEN3_CODER: qwen3_coder,
    ToolFormat.LLAMA3_JSON: llama3_json,
    ToolFormat.MISTRAL: mistral,
    ToolFormat.DEEPSEEK: deepseek,
    ToolFormat.GLM: glm,
    ToolFormat.KIMI: kimi,
    ToolFormat.FENCED: fenced,
}
_PROBE = ToolCall("probe_tool", {"text": 'say "é" }', "count": 3, "items": [1, {"of": "]"}]})
_PROBE_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "items": {"type": "array"}},
    "required": ["text"],
}


def parse(text: str, schemas: Schemas | None = None, *, reader: Reader = hermes, reasons: bool = False) -> ParsedTurn:
    """Split a turn's text (without its stop token) into reasoning, content and calls.

    ``reasons``: the prompt ended with the opening tag of reasoning.
    """
    start = answer_start(text, opened=reasons)
    turn = reader(text[start:], schemas or {})
    return ParsedTurn(turn.content, turn.calls, text[:start])


def detect(render: Callable[[Json], str]) -> ToolFormat | None:
    """The format in which a template writes a call: the one that reads back what was written; None: no known one does.

    ``render``: arguments, as an object or as JSON text, to the text of an assistant's turn with one call of ``probe_tool``.
    """
    for arguments in (_PROBE.arguments, json.dumps(_PROBE.arguments, ensure_ascii=False)):
        try:
            written = render(arguments)
        except UsageError:
            continue
        for name, reader in READERS.items():
            if parse(written, {_PROBE.name: _PROBE_SCHEMA}, reader=reader).calls == (_PROBE,):
                return name
    return None


def response_template_reader(tokenizer: Any) -> Reader:
    """Reads turns with transformers, by the ``response_template`` that the tokenizer ships.

    transformers reads a turn as a whole: when one call is malformed, the turn is one malformed call.
    """

    def read(text: str, schemas: Schemas) -> ParsedTurn:
        tools = [{"type": "function", "function": {"name": name, "parameters": dict(s)}} for name, s in schemas.items()]
        try:
            message = tokenizer.parse_response(text, prefix="", tools=tools)
            calls = [call.get("function", call) for call in message.get("tool_calls") or []]
            found = [checked_call(call.get("name"), call.get("arguments", {})) for call in calls]
        except Exception as error:  # a template is somebody else's program, run on text that may be anything
            return ParsedTurn("", (ToolCall("", None, f"the turn can't be read: {error}"[:500]),))
        content = message.get("content")
        return ParsedTurn(content if isinstance(content, str) else "" if found else text, tuple(found))

    return read
