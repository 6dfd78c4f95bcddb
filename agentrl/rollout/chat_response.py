"""Answers in the form of OpenAI's chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from agentrl.rollout.outside_episode import Completion


def as_completion(answer: Completion, model: str) -> dict[str, Any]:
    """A ``chat.completion`` object; ``context`` counts how often the client rewrote what was said before."""
    choice = {"index": 0, "message": _message(answer), "finish_reason": answer.finish_reason, "logprobs": None}
    return {**_head("chat.completion", model), "choices": [choice], "usage": _usage(answer), "context": answer.context}


def as_stream(answer: Completion, model: str) -> Iterator[bytes]:
    """The same as server-sent events: a turn is stored whole before it is shown, so it comes in one piece."""
    head = _head("chat.completion.chunk", model)
    delta = _message(answer)
    for i, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = i
    for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": answer.finish_reason}):
        yield _event({**head, "choices": [{"index": 0, "logprobs": None, **choice}]})
    yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _message(answer: Completion) -> dict[str, Any]:
    return answer.message.model_dump(exclude_none=True) | {"content": answer.message.content}


def _usage(answer: Completion) -> dict[str, int]:
    prompt, sampled = answer.prompt_tokens, answer.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
