"""Chat completion requests as outside agents send them, checked against what one recorded distribution allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.errors import UsageError
from agentrl.tokens.messages import Message
from agentrl.types import Json, ToolCall


class Function(BaseModel):
    """A call as the protocol writes it: arguments are JSON in a string."""

    name: str
    arguments: str = "{}"


class Call(BaseModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a request; parts other than text can't be represented and are refused."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[Call] | None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class ChatRequest(BaseModel):
    """The fields that are read. Others are ignored, except those of `_NEUTRAL`, which would change what is sampled."""

    model_config = ConfigDict(extra="allow")

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[dict[str, Json]] = []
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    stream: bool = False

    @property
    def limit(self) -> int | None:
        """Tokens that the client wants at most."""
        asked = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(asked) if asked else None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "stop": ([],),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "chat_template_kwargs": ({},),
    "reasoning_effort": (),
    "parallel_tool_calls": (True,),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "functions": ([],),
}
"""Settings that would change the prompt, the sampled distribution or the answer's shape, and the values that do not."""


@dataclass(frozen=True)
class Said:
    """A message as both sides know it, for comparing a new request with what was said before."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()


def parse_request(body: bytes, temperature: float) -> ChatRequest:
    """The request; `UsageError` names the field that is wrong or can't be honoured."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
    for field, allowed in _NEUTRAL.items():
        value = (request.model_extra or {}).get(field)
        if value is not None and value not in allowed:
            raise UsageError(f"{field}={json.dumps(value)[:200]} would change what is recorded for training: leave it out")
    if request.temperature is not None and request.temperature != temperature:
        raise UsageError(
            f"temperature={request.temperature:g}, but this run samples at {temperature:g}: leave it out or start the run with "
            f"engine.temperature={request.temperature:g}"
        )
    return request


def said(message: ChatMessage) -> Said:
    """``message`` in the form that is compared; arguments of calls count by value, not by spelling."""
    role = "system" if message.role == "developer" else message.role
    return Said(
        role, message.text, tuple((c.function.name, _canonical(c.function.arguments)) for c in message.tool_calls or ())
    )


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def to_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Messages as the chat template takes them. `UsageError` for a call whose arguments are no JSON object."""
    return [Message(said(m).role, m.text, tuple(_tool_call(c) for c in m.tool_calls or ())) for m in messages]  # type: ignore[arg-type]


def _tool_call(call: Call) -> ToolCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise UsageError(f"the arguments of a call to {call.function.name!r} are no JSON object, so it can't be shown again")
    return ToolCall(call.function.name, arguments)
