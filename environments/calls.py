"""Tool calls as a policy writes them; scripted policies and tests say them through here."""

from __future__ import annotations

import json

from agentrl.types import Json


def tool_call(name: str, **arguments: Json) -> str:
    """A call in the form that turns are parsed by."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
