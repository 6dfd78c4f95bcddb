"""An ended episode as bytes, so that another process can grade it: all that `Environment.reward` may look at.

Invariants
- graded_the_same: ``reward`` gets the same task, state, turns, conversation and ending in either process.
- nothing_is_guessed: what can't be carried exactly is an error that names the attribute, never something similar.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from agentrl.environment.episode import Episode, Turn
from agentrl.errors import EnvironmentFault
from agentrl.tokens.messages import Message, message_json, read_message
from agentrl.types import Json, Task, Termination, ToolCall, ToolResult

_TAG = "!"
_LEVEL = 1
"""Of zlib: most of it is text, and the worker that packs has episodes to run."""


class _NotCarried(Exception):
    """A value that has no exact form here."""


def pack(environment: str, episode: Episode) -> bytes:
    """The ended episode without its sandboxes; compressed JSON in UTF-8.

    ``episode.state`` may hold None, bool, int, float, str, bytes, lists, tuples, sets and dicts of these; `EnvironmentFault`
    names the attribute that holds anything else.
    """
    where = f"environment {environment!r}, task {episode.task.id!r}"
    if episode.sub_agents:
        raise EnvironmentFault(f"{where}: an episode with sub-agents can't be given to a reward worker: set reward.workers=0")
    state = {name: _carried(value, where, f"episode.state.{name}") for name, value in vars(episode.state).items()}
    body = {
        "state": state,
        "turns": [_turn_json(turn, where, index) for index, turn in enumerate(episode.turns)],
        "messages": [_message(message, where) for message in episode.messages],
        "context_tokens": episode.context_tokens,
        "max_context": episode.max_context,
    }
    return zlib.compress(json.dumps(body, separators=(",", ":")).encode(), _LEVEL)


def unpack(evidence: bytes, task: Task, seed: int, ended: Termination) -> Episode:
    """The episode that was packed, with ``task``, ``seed`` and ending as the store has them; it has no sandbox."""
    body = json.loads(zlib.decompress(evidence))
    return Episode(
        task,
        seed=seed,
        state=SimpleNamespace(**{name: _decoded(value) for name, value in body["state"].items()}),
        turns=[_turn(turn) for turn in body["turns"]],
        messages=[read_message(_decoded(message)) for message in body["messages"]],
        context_tokens=body["context_tokens"],
        max_context=body["max_context"],
        ended=ended,
    )


def _carried(value: Any, where: str, what: str) -> Json:
    try:
        encoded = _encoded(value)
        json.dumps(encoded)  # numbers of more digits than Python writes
    except _NotCarried as error:
        raise EnvironmentFault(
            f"{where}: {what} holds {error}, which can't be given to a reward worker. Keep None, numbers, text, bytes, lists, "
            "tuples, sets and dicts in episode.state (finish() may turn it into these), or set reward.workers=0"
        ) from None
    except (ValueError, RecursionError) as error:
        raise EnvironmentFault(f"{where}: {what} can't be given to a reward worker: {error}") from error
    return encoded


def _encoded(value: Any) -> Json:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if kind is bytes:
        return {_TAG: "bytes", "v": base64.b64encode(value).decode()}
    if kind is list:
        return [_encoded(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {_TAG: kind.__name__, "v": [_encoded(item) for item in value]}
    if kind is dict:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _encoded(item) for key, item in value.items()}
        return {_TAG: "dict", "v": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    raise _NotCarried(f"a {kind.__module__}.{kind.__qualname__}")


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": base64.b64decode,
    "tuple": lambda items: tuple(map(_decoded, items)),
    "set": lambda items: set(map(_decoded, items)),
    "frozenset": lambda items: frozenset(map(_decoded, items)),
    "dict": lambda pairs: {_decoded(key): _decoded(item) for key, item in pairs},
}


def _decoded(value: Json) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        if _TAG in value:
            return _DECODERS[value[_TAG]](value["v"])
        return {key: _decoded(item) for key, item in value.items()}
    return value


def _message(message: Message, where: str) -> Json:
    return _carried(message_json(message), where, "a message")


def _turn_json(turn: Turn, where: str, index: int) -> Json:
    what = f"turn {index}"
    return {
        "text": turn.text,
        "calls": [_carried([c.name, c.arguments, c.error], where, what) for c in turn.calls],
        "results": [_carried([r.name, r.text, r.is_error, r.duration_s, r.raw], where, what) for r in turn.results],
        "messages": [_message(message, where) for message in turn.messages],
    }


def _turn(body: Mapping[str, Json]) -> Turn:
    return Turn(
        body["text"],
        tuple(ToolCall(*_decoded(call)) for call in body["calls"]),
        tuple(ToolResult(*_decoded(result)) for result in body["results"]),
        tuple(read_message(_decoded(message)) for message in body["messages"]),
    )
