"""A chat template as a function of a conversation's shape: renders in which every content is a marker, cut at the markers.

Contents never enter a render, so nothing that a tool prints can change what the template writes, and a render is cached by
shape. `cut_prompt` gives the pieces of a whole prompt, `cut_suffix` those that new messages add after an assistant turn,
`cut_whole` those of a conversation as the template writes it now, whatever it wrote before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentrl.errors import UsageError
from agentrl.tokens.messages import Message
from agentrl.types import Json

UNKNOWN_TOOL = "unknown"
"""Name on a tool message that answers a call of no declared tool; some templates need one."""
_MARKER = "Zq7{kind}{index}qZ"
_MARKERS = re.compile(r"Zq7([mcr])(\d+)qZ")

Render = Callable[[list[dict[str, Json]], list[Json] | None, bool], str]
"""(conversation, tools, whether to open the assistant's turn) to text."""

Shape = tuple[tuple[str, int, str], ...]
"""Per message: role; number of neutral calls; JSON of the calls to render as they are, or the name on a tool message."""


def history_shape(messages: Sequence[Message], *, neutral_calls: bool) -> Shape:
    """The shape of messages whose assistant turns were sampled, so that their text holds their calls already.

    ``neutral_calls`` is for templates that refuse a tool message without a call before it: an assistant message then
    shows one call, without meaning, for each tool message that follows it.
    """
    shape: list[tuple[str, int, str]] = []
    n_tools = 0
    for message in reversed(messages):
        shape.append((message.role, n_tools if neutral_calls and message.role == "assistant" else 0, message.name))
        n_tools = n_tools + 1 if message.role == "tool" else 0
    return tuple(reversed(shape))


def prompt_shape(messages: Sequence[Message]) -> Shape:
    """The shape of messages that are about to be rendered for the first time, written calls included."""
    return tuple((m.role, 0, m.name or _calls_json(m)) for m in messages)


class NotASuffix(UsageError):
    """The template rewrites what it wrote before, or does not write what is new: messages do not only append."""


class TemplateText:
    """Cuts renders of one template into pieces. ``name`` is used in errors.

    ``text_arguments``: the template takes the arguments of a call as JSON text, not as an object. ``named_ids``: it identifies
    calls as ``functions.NAME:0``, else by nine digits. ``reasoning_field``: it takes reasoning as a field of its own, not as
    the beginning of the content.
    """

    def __init__(self, render: Render, name: str, *, text_arguments: bool, named_ids: bool, reasoning_field: bool) -> None:
        self._render = render
        self._name = name
        self._text_arguments = text_arguments
        self._named_ids = named_ids
        self._reasoning_field = reasoning_field
        self.cut_prompt = lru_cache(maxsize=4096)(self._cut_prompt)
        self.cut_suffix = lru_cache(maxsize=4096)(self._cut_suffix)
        self.cut_whole = lru_cache(maxsize=4096)(self._cut_whole)

    def _cut_prompt(self, shape: Shape, tools_json: str) -> Pieces:
        """Before the first content, between contents, and after the last one, turn opened."""
        tools = json.loads(tools_json) if tools_json else None
        text = self._render(self._conversation(shape), tools, True)
        pieces = self._split(text, shape)
        if pieces is None or any(key[0] != "m" for key in pieces.keys):
            raise UsageError(f"{self._name}: the template drops, repeats or reorders messages of {_roles(shape)}")
        return pieces

    def _cut_suffix(self, history: Shape, new: Shape) -> tuple[str, ...]:
        """``len(new) + 1`` pieces, the first being everything after the last assistant content (its end of turn too).

        Earlier ids stay as the engine saw them, so only text after that content counts. What precedes an assistant
        content may differ between the renders (some templates put or drop an empty reasoning block there); any other
        difference means that the new text is not a suffix, which is refused.
        """
        before = self._split(self._render(self._conversation(history), None, False), history)
        after = self._split(self._render(self._conversation(history + new), None, True), history + new)
        if before is None or after is None:
            raise NotASuffix(
                f"{self._name}: the template drops, repeats or reorders messages of {_roles(history + new)}; an append-only "
                "transcript can't use it"
            )
        n = len(before.keys)
        comparable = [i for i, (_, index) in enumerate(before.keys) if history[index][0] != "assistant"]
        same = before.keys == after.keys[:n] and all(before.texts[i] == after.texts[i] for i in comparable)
        added = tuple(("m", len(history) + i) for i in range(len(new)))
        if not same or after.keys[n:] != added or not after.texts[n].startswith(before.texts[n]):
            raise NotASuffix(
                f"{self._name}: what {_roles(new)} add after {_roles(history)} is not a suffix of the conversation so far; "
                "an append-only transcript can't use this template"
            )
        return after.texts[n:]

    def _cut_whole(self, shape: Shape, reasoned: frozenset[int], tools_json: str) -> Pieces:
        """What the template writes of a conversation whose turns ``reasoned`` began with reasoning, the next turn opened.

        Keys are ``("m", i)`` for the content of message i and ``("r", i)`` for its reasoning; what the template drops is
        missing.
        """
        tools = json.loads(tools_json) if tools_json else None
        return _split(self._render(self._conversation(shape, reasoned), tools, True))

    def cut_whole_with(self, shape: Shape, n_new: int, reasoned: frozenset[int] = frozenset(), tools_json: str = "") -> Pieces:
        """The same; `NotASuffix` unless the last ``n_new`` messages are there, once each and in order."""
        pieces = self.cut_whole(shape, reasoned, tools_json)
        shown = [index for kind, index in pieces.keys if kind == "m" and index >= len(shape) - n_new]
        if shown != list(range(len(shape) - n_new, len(shape))):
            raise NotASuffix(f"{self._name}: the template drops, repeats or reorders the last messages of {_roles(shape)}")
        return pieces

    def end_of_turn(self) -> str:
        """The text right after an assistant content at the end of a conversation."""
        shape: Shape = (("user", 0, ""), ("assistant", 0, ""))
        pieces = self._split(self._render(self._conversation(shape), None, False), shape)
        if pieces is None:
            raise UsageError(f"{self._name}: the template drops, repeats or reorders messages of {_roles(shape)}")
        return pieces.texts[-1]

    def _split(self, text: str, shape: Shape) -> Pieces | None:
        """None when contents are not all there, once each and in order. A message with calls may show its calls only."""
        pieces = _split(text)
        indices = [index for _, index in pieces.keys]
        contents = [index for kind, index in pieces.keys if kind == "m"]
        needed = [i for i, (role, n_calls, calls) in enumerate(shape) if not n_calls and not (calls and role == "assistant")]
        complete = set(needed) <= set(contents) and len(set(contents)) == len(contents)
        return pieces if complete and indices == sorted(indices) else None

    def _conversation(self, shape: Shape, reasoned: frozenset[int] = frozenset()) -> list[dict[str, Json]]:
        conversation: list[dict[str, Json]] = []
        n_answers = 0
        for index, (role, n_calls, extra) in enumerate(shape):
            message: dict[str, Json] = {"role": role, "content": _MARKER.format(kind="m", index=index)}
            if role == "tool":
                message["tool_call_id"] = self._identity(extra, n_answers)
                message["name"] = extra or UNKNOWN_TOOL
                n_answers += 1
            elif role == "assistant":
                calls = json.loads(extra or "[]")
                calls += [{"name": _MARKER.format(kind="c", index=index), "arguments": {}} for _ in range(n_calls)]
                if calls:
                    message["tool_calls"] = [self._call(call, n_answers + i) for i, call in enumerate(calls)]
            if index in reasoned:
                thought = _MARKER.format(kind="r", index=index)
                if self._reasoning_field:
                    message["reasoning_content"] = thought
                else:
                    message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
            conversation.append(message)
        return conversation

    def _call(self, call: dict[str, Json], number: int) -> dict[str, Json]:
        identity = self._identity(call["name"], number)
        if self._text_arguments:
            call = {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        return {"id": identity, "type": "function", "function": call}

    def _identity(self, name: str, number: int) -> str:
        return f"functions.{name or UNKNOWN_TOOL}:{number}" if self._named_ids else f"{number:09}"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Texts around markers: ``texts[i]`` precedes marker ``keys[i]``; one text more than markers."""

    texts: tuple[str, ...]
    keys: tuple[tuple[str, int], ...]


def _split(text: str) -> Pieces:
    found = _MARKERS.split(text)
    keys = tuple((kind, int(index)) for kind, index in zip(found[1::3], found[2::3], strict=True))
    return Pieces(tuple(found[::3]), keys)


def _calls_json(message: Message) -> str:
    if not message.tool_calls:
        return ""
    return json.dumps([{"name": call.name, "arguments": call.arguments or {}} for call in message.tool_calls])


def _roles(shape: Shape) -> str:
    return "[" + ", ".join(role for role, _, _ in shape) + "]"
