"""Segments as Postgres gives them: arrays at once, texts, calls, results and timings when somebody asks.

A trainer reads arrays only, and a claim brings thousands of turns, so what only people read stays in the driver's result until
then, neither copied nor decoded. A result is freed with the last of its segments that was not asked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from typing import Any

import numpy as np
from psycopg.pq.abc import PGresult

from agentrl.types import FinishReason, Segment, Timings, ToolCall, ToolResult

HEAD = (
    "seg", "context", "coalesce(versions[1], 0)", "n_obs", "n_act",
    "coalesce(array_position(array[{}], finish_reason), 0)".format(", ".join(f"'{f.value}'" for f in FinishReason)),
    "(loss_mask is not null)::int", "(token_versions is not null)::int", "(unit_starts is not null)::int",
)  # fmt: skip
"""Numbers of a turn. They and its arrays come as one value: each costs a client as much as a hundred of its bytes."""
_ARRAYS = ("ids", "logprobs", "token_versions", "loss_mask", "unit_starts")
_REST = (
    "observation_text", "action_text", "action_raw", "tool_calls::text", "tool_results::text", "tool_raw", "exact", "queue_s",
    "generate_s", "tool_s", "compacted::text",
)  # fmt: skip
NUMBERS = struct.Struct(f"!{1 + len(HEAD)}qd")
_REPEATED = 4096
_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
_FINISH_REASONS = (None, *FinishReason)
_new = object.__new__
_set = {f.name: getattr(Segment, f.name).__set__ for f in fields(Segment)}  # the dataclass is frozen, its slots are not
_set_index, _set_observation, _set_action = _set["index"], _set["observation"], _set["action"]
_set_logprobs, _set_versions, _set_loss_mask = _set["logprobs"], _set["versions"], _set["loss_mask"]
_set_context, _set_finish, _set_reward = _set["context"], _set["finish_reason"], _set["reward"]
_set_unit_starts = _set["unit_starts"]


class StoredSegment(Segment):
    """A segment that decodes the rest of its row when first asked for it; copies and pickles of it are plain segments."""

    __slots__ = ("_rest",)

    def __new__(cls, *values: Any, **named: Any) -> Segment:  # type: ignore[misc]
        """What `dataclasses.replace` calls."""
        return Segment(*values, **named)

    def __getattr__(self, name: str) -> Any:
        # Python comes here for a slot that is not filled yet.
        if name not in _LATER:
            raise AttributeError(f"Segment has no attribute {name!r}")
        rest = self._rest
        if rest is not None:
            for field, value in zip(_LATER, _decoded(rest()), strict=True):
                _set[field](self, value)
            _set_rest(self, None)
        return object.__getattribute__(self, name)

    def __reduce__(self) -> tuple[type[Segment], tuple[Any, ...]]:
        return Segment, tuple(getattr(self, f.name) for f in fields(Segment))

    def __repr__(self) -> str:
        made, values = self.__reduce__()
        return repr(made(*values))


_set_rest = StoredSegment._rest.__set__  # type: ignore[attr-defined]
_LATER = ("observation_text", "action_text", "action_raw", "tool_calls", "tool_results", "timings", "compacted")


@lru_cache(maxsize=64)
def _repeated(version: int) -> np.ndarray:
    """One version many times: turns that carry a single one are views of it, read-only like all arrays of a stored segment."""
    made = np.full(_REPEATED, version, np.int32)
    made.flags.writeable = False
    return made


def _decoded(row: Sequence[Any]) -> tuple[Any, ...]:
    """The values of `_LATER`, from a whole row."""
    (observation_text, action_text, action_raw, calls_json, results_json, tool_raw, exact, queue_s, generate_s, tool_s,
     compacted) = row[1:]  # fmt: skip
    if exact is not None:
        observation_text, action_text, calls, results = json.loads(bytes(exact))
    else:
        calls, results = json.loads(calls_json), json.loads(results_json)
    raws = tool_raw if tool_raw is not None else [None] * len(results)
    return (
        observation_text, action_text, action_raw, tuple(ToolCall(**c) for c in calls),
        tuple(ToolResult(**r, raw=raw) for r, raw in zip(results, raws, strict=True)), Timings(queue_s, generate_s, tool_s),
        None if compacted is None else tuple(json.loads(compacted)),
    )  # fmt: skip


def segment_columns(place: str) -> str:
    """The columns that `read_segments` takes; ``place`` is SQL for the trajectory's place among those asked for, from 0."""
    numbers = [f"int8send({number})" for number in (place, *HEAD)]
    numbers.append("float8send(coalesce(reward, 'NaN'))")
    # From the right, since most of the last ones are empty: each concatenation copies what it is given.
    arrays = " || (".join(f"coalesce({array}, '')" for array in _ARRAYS) + ")" * (len(_ARRAYS) - 1)
    return ", ".join((f"{' || '.join(numbers)} || ({arrays})", *_REST))


def read_segments(n: int, result: PGresult, decode: Callable[[int], Sequence[Any]]) -> list[list[Segment]]:
    """The segments of ``n`` trajectories from a binary result, and what decodes a row by its number when somebody asks."""
    listed: list[list[Segment]] = [[] for _ in range(n)]
    for row in range(result.ntuples):
        packed = result.get_value(row, 0)
        assert packed is not None
        place, *numbers = NUMBERS.unpack_from(packed)
        listed[place].append(_segment(numbers, packed, partial(decode, row)))
    return listed


def _segment(numbers: Sequence[Any], packed: bytes, rest: Callable[[], Sequence[Any]]) -> Segment:
    seg, context, version, n_obs, n_act, finish, has_mask, has_versions, has_units, reward = numbers
    n_ids = n_obs + n_act
    tokens = np.frombuffer(packed, _INT32, n_ids + (2 if has_versions else 1) * n_act, NUMBERS.size)
    if has_versions:
        versions = tokens[n_ids + n_act :]
    else:
        versions = _repeated(version)[:n_act] if n_act <= _REPEATED else np.full(n_act, version, np.int32)
    mask = units = None
    if has_mask or has_units:
        marks = np.frombuffer(packed, np.uint8, offset=NUMBERS.size + tokens.nbytes)
        mask = marks[:n_act] if has_mask else None
        units = marks[-n_act:] if has_units else None
    made = _new(StoredSegment)
    _set_index(made, seg)
    _set_observation(made, tokens[:n_obs])
    _set_action(made, tokens[n_obs:n_ids])
    _set_logprobs(made, tokens[n_ids : n_ids + n_act].view(_FLOAT32))
    _set_versions(made, versions)
    _set_loss_mask(made, mask)
    _set_unit_starts(made, units)
    _set_context(made, context)
    _set_finish(made, _FINISH_REASONS[finish])
    _set_reward(made, reward if reward == reward else None)  # NaN stands for none
    _set_rest(made, rest)
    return made
