"""A language model as grader: asks a server that speaks OpenAI's chat completions; gives no answer rather than a wrong one.

Invariants
- outage_is_no_verdict: a server that is away, busy or talks nonsense is an error after some tries, never a score.
- nothing_is_cut: a prompt over the limit, ours or the server's, is an error by name; a judge that saw half of it would teach
  the policy to write for that half.
- asked_once: with a cache and temperature 0, the same question is asked once, by whatever process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from agentrl.errors import JudgeNonsense, JudgeOverrun, JudgeRefused, JudgeUnavailable
from agentrl.tokens.messages import Message, message_json
from agentrl.types import Json

_BUSY = (408, 409, 425, 429)
"""Statuses below 500 that pass."""
_TOO_LONG = re.compile(r"context.{0,20}(length|window)|maximum.{0,20}tokens|too (long|many tokens)|too large", re.I)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_LONGEST_PAUSE_S = 30.0
_SHOWN = 300


@dataclass
class Judge:
    """One model on one server; one object serves many gradings at once."""

    url: str
    """Base address, such as ``http://127.0.0.1:8000/v1``."""
    model: str
    """Name that the server knows the model by."""
    max_input_chars: int
    """Longest prompt, all messages together: what the judge reads whole."""
    temperature: float = 0.0
    max_tokens: int = 512
    """Longest answer; one that was cut there is nonsense."""
    timeout_s: float = 60.0
    """Of one try."""
    tries: int = 4
    pause_s: float = 1.0
    """Before the second try; it doubles. A server that says how long to wait is obeyed, up to 30 s."""
    at_once: int = 16
    """Questions that one process asks at a time."""
    key_variable: str | None = None
    """Environment variable with the API key."""
    cache: Path | None = None
    """Folder of answers, shared by all processes; used at temperature 0."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Further fields of the request."""
    transport: httpx2.AsyncBaseTransport | None = None
    _places: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(default_factory=dict, repr=False)

    async def score(self, prompt: str | Sequence[Message], low: float, high: float) -> float:
        """The last number of the answer's last line, mapped from ``low`` .. ``high`` to 0 .. 1; `JudgeNonsense` without one."""
        answer = await self.ask(prompt)
        lines = answer.strip().splitlines()
        found = _NUMBER.findall(lines[-1]) if lines else []
        if not found or not low <= float(found[-1]) <= high:
            raise JudgeNonsense(f"judge {self.model}: no number from {low:g} to {high:g} in the last line of {_short(answer)}")
        return (float(found[-1]) - low) / (high - low)

    async def ask(self, prompt: str | Sequence[Message]) -> str:
        """The answer to a user's message, or to a conversation.

        Raises `JudgeOverrun` for what is too long, `JudgeRefused` for what another try can't help, `JudgeUnavailable` after the
        last try.
        """
        messages = [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
        chars = sum(len(message.content) for message in messages)
        if chars > self.max_input_chars:
            raise JudgeOverrun(
                f"judge {self.model}: the prompt has {chars} characters, max_input_chars is {self.max_input_chars}"
            )
        body = {
            "model": self.model, "messages": [message_json(m) for m in messages], "temperature": self.temperature,
            "max_tokens": self.max_tokens, **self.extra,
        }  # fmt: skip
        kept = self._kept(body)
        if kept is not None and (known := _read(kept)) is not None:
            return known
        async with self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.at_once)):
            answer = await self._patiently(body)
        if kept is not None:
            await asyncio.to_thread(_write, kept, answer)
        return answer

    def _kept(self, body: Mapping[str, Json]) -> Path | None:
        if self.cache is None or self.temperature != 0:
            return None
        key = hashlib.sha256(json.dumps([self.url, body], sort_keys=True).encode()).hexdigest()
        return self.cache / key[:2] / f"{key}.json"

    async def _patiently(self, body: Mapping[str, Json]) -> str:
        headers = {"Authorization": f"Bearer {self._key()}"} if self.key_variable else {}
        async with httpx2.AsyncClient(timeout=self.timeout_s, headers=headers, transport=self.transport) as client:
            pause, why = self.pause_s, ""
            for number in range(self.tries):
                if number:
                    await asyncio.sleep(min(_LONGEST_PAUSE_S, pause) * random.uniform(0.8, 1.2))
                    pause *= 2
                try:
                    response = await client.post(f"{self.url.rstrip('/')}/chat/completions", json=body)
                except httpx2.RequestError as error:
                    why = f"{type(error).__name__} {error}".strip()
                    continue
                if response.status_code >= 500 or response.status_code in _BUSY:
                    why = f"status {response.status_code} {_short(response.text)}"
                    pause = max(pause, _asked_to_wait(response))
                    continue
                self._check(response)
                answer = _content(response)
                if answer is not None:
                    return answer
                why = f"no answer in {_short(response.text)}"
            raise JudgeUnavailable(
                f"judge {self.model} at {self.url} gave no answer in {self.tries} tries; the last one: {why}"
            )

    def _check(self, response: httpx2.Response) -> None:
        """Raises what another try can't help."""
        if response.status_code < 400:
            return
        said = f"judge {self.model} at {self.url}: status {response.status_code} {_short(response.text)}"
        if response.status_code == 413 or (response.status_code in (400, 422) and _TOO_LONG.search(response.text)):
            raise JudgeOverrun(said)
        raise JudgeRefused(said)

    def _key(self) -> str:
        assert self.key_variable is not None
        key = os.environ.get(self.key_variable)
        if not key:
            raise JudgeRefused(f"judge {self.model}: the environment variable {self.key_variable} holds no key")
        return key


def _content(response: httpx2.Response) -> str | None:
    """The text of a whole answer; None for anything else."""
    try:
        choice: Any = response.json()["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    whole = choice.get("finish_reason") in (None, "stop")
    return text if isinstance(text, str) and text.strip() and whole else None


def _asked_to_wait(response: httpx2.Response) -> float:
    try:
        return min(_LONGEST_PAUSE_S, max(0.0, float(response.headers.get("retry-after", "0"))))
    except ValueError:
        return 0.0


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _read(path: Path) -> str | None:
    """A kept answer; one that was damaged is asked for again."""
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


def _write(path: Path, answer: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8") as file:
        file.write(json.dumps({"answer": answer}))
    Path(file.name).replace(path)
