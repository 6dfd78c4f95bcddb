"""One chat message, as environments write it and chat templates read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from agentrl.errors import UsageError
from agentrl.types import Json, ToolCall

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """``content`` is plain text: control-token text inside it stays text. ``tool_calls`` only on assistant messages.

    ``name``: on a tool message, the tool that answered; some chat templates write it.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise UsageError(f"unknown message role {self.role!r}; roles are {', '.join(get_args(Role))}")
        if not isinstance(self.content, str):
            raise UsageError(f"the content of a {self.role} message must be text, not {self.content!r:.100}")
        if self.tool_calls and self.role != "assistant":
            raise UsageError(f"a {self.role} message can't carry tool calls; only an assistant message can")
        # Templates write a name as it is: it must not be able to hold the text of a control token.
        if self.name and (self.role != "tool" or not _NAME.fullmatch(self.name)):
            raise UsageError(f"{self.name!r:.100} can't be the name on a {self.role} message: a tool message names its tool")


def message_json(message: Message) -> dict[str, Json]:
    """A message as JSON, without what it leaves out."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    named = {"name": message.name} if message.name else {}
    return {"role": message.role, "content": message.content, **named, **({"tool_calls": calls} if calls else {})}


def read_message(value: Mapping[str, Json]) -> Message:
    """The inverse of `message_json`."""
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in value.get("tool_calls", ()))
    return Message(value["role"], value["content"], calls, value.get("name", ""))
