"""One chat message, as environments write it and chat templates read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from agentrl.errors import UsageError
from agentrl.types import ToolCall

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """``content`` is plain text: control-token text inside it stays text. ``tool_calls`` only on assistant messages."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise UsageError(f"unknown message role {self.role!r}; roles are {', '.join(get_args(Role))}")
        if self.tool_calls and self.role != "assistant":
            raise UsageError(f"a {self.role} message can't carry tool calls; only an assistant message can")
