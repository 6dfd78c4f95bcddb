"""Between the vocabulary's values and what Postgres can hold: raw buffers, texts, JSON.

- Arrays are raw little-endian buffers: ids and versions int32, log-probs float32, masks one byte a token.
- Text columns can't hold NUL or lone surrogates, jsonb neither these nor NaN. Model and tool output is data, so there such
  characters are replaced for reading and the exact value is kept beside it; in any other field they are a `BadValue`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np

from agentrl.errors import BadValue
from agentrl.store.contract import Trained
from agentrl.types import (
    EpisodeEnd,
    Json,
    Lineage,
    Origin,
    Outcome,
    Reward,
    Sampling,
    Segment,
    Task,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
_STRICT = json.JSONEncoder(allow_nan=False, ensure_ascii=False)  # json.dumps builds a new one on each call


def array_bytes(array: np.ndarray, dtype: np.dtype[Any], field: str) -> bytes:
    """A one-dimensional array as a little-endian buffer; `BadValue` when its shape or kind does not fit."""
    return _fitting(array, dtype, field).tobytes()


def _fitting(array: np.ndarray, dtype: np.dtype[Any], field: str) -> np.ndarray:
    """The same values as a contiguous array of ``dtype``; the same object when it is one."""
    if array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous:
        return array
    if array.ndim != 1 or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise BadValue(f"{field} must be one-dimensional {dtype.name}, got {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array, dtype)


def float_bytes(array: np.ndarray | None, length: int | None, field: str) -> bytes | None:
    """A float32 buffer without NaN or infinity."""
    if array is None:
        return None
    raw = array_bytes(array, _FLOAT32, field)
    if length is not None and len(array) != length:
        raise BadValue(f"{field} has {len(array)} values, expected {length}")
    if b"\0" in np.isfinite(array).tobytes():  # a third of the time of .all()
        raise BadValue(f"{field} holds NaN or an infinite value at position {int(np.flatnonzero(~np.isfinite(array))[0])}")
    return raw


def clean_text(text: str) -> str:
    """The text with NUL and lone surrogates replaced; the same object when there are none."""
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "".join(REPLACEMENT if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def _utf8(text: str) -> tuple[bytes, bool]:
    """The text as a text column takes it, and whether characters had to be replaced."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return clean_text(text).encode(), True
    return (clean_text(text).encode(), True) if b"\x00" in encoded else (encoded, False)


def _clean_json(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {clean_text(str(k)): _clean_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_json(v) for v in value]
    return value


def _fits_jsonb(dumped: str) -> bool:
    if "\\u0000" in dumped and "\\u0000" in dumped.replace("\\\\", ""):
        return False
    try:
        dumped.encode()
    except UnicodeEncodeError:
        return False
    return True


def strict_json(value: Json, field: str) -> str:
    """JSON text that jsonb accepts; `BadValue` naming the field for NaN, U+0000, lone surrogates or foreign objects."""
    try:
        dumped = _STRICT.encode(value)
    except (TypeError, ValueError, RecursionError) as e:
        raise BadValue(f"{field} can't be stored as JSON: {_find_bad(value, field) or e}") from e
    if not _fits_jsonb(dumped):
        raise BadValue(f"{field} can't be stored as JSON: {_find_bad(value, field)}")
    return dumped


def _find_bad(value: Any, path: str) -> str | None:
    """Where in a JSON value the part lies that can't be stored."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value}"
    if isinstance(value, str) and clean_text(value) != value:
        return f"{path} holds U+0000 or a lone surrogate"
    if isinstance(value, Mapping):
        inner = [(v, f"{path}.{k}") for k, v in value.items()] + [(k, f"a key of {path}") for k in value]
    elif isinstance(value, list | tuple):
        inner = [(v, f"{path}[{i}]") for i, v in enumerate(value)]
    else:
        return None
    return next((bad for v, p in inner if (bad := _find_bad(v, p))), None)


def _calls_and_results(segment: Segment) -> tuple[list[Any], list[Any]]:
    calls = [{"name": c.name, "arguments": c.arguments, "error": c.error} for c in segment.tool_calls]
    results = [
        {"name": r.name, "text": r.text, "is_error": r.is_error, "duration_s": r.duration_s} for r in segment.tool_results
    ]
    return calls, results


CONTENT = slice(1, -3)
"""Of the parameters of a segment: all but its index and timings."""


def segment_parameters(s: Segment) -> tuple[Any, ...]:
    """Everything `write_segment_v2` takes after the fence, texts in UTF-8; `CONTENT` of it tells two turns apart."""
    n_obs, n_act = len(s.observation), len(s.action)
    marks = [array for array in (s.loss_mask, s.unit_starts) if array is not None]
    if not len(s.logprobs) == len(s.versions) == n_act or any(len(array) != n_act for array in marks):
        raise BadValue(
            f"segment {s.index}: action has {n_act} tokens, logprobs {len(s.logprobs)}, versions {len(s.versions)}, "
            f"loss_mask {_length(s.loss_mask)}, unit_starts {_length(s.unit_starts)}"
        )
    ids = b"".join((_fitting(s.observation, _INT32, "observation").data, _fitting(s.action, _INT32, "action").data))
    logprobs = float_bytes(s.logprobs, n_act, "logprobs")
    versions = array_bytes(s.versions, _INT32, "versions")
    version = int(s.versions[0]) if n_act else None
    token_versions = None if versions == versions[:4] * n_act else versions
    mask = None if s.loss_mask is None or s.loss_mask.all() else (s.loss_mask != 0).astype(np.uint8).tobytes()
    units = None if s.unit_starts is None else (s.unit_starts != 0).astype(np.uint8).tobytes()
    reward = finite(s.reward, "segment.reward") if s.reward is not None else None
    observation_text, replaced_observation = _utf8(s.observation_text)
    action_text, replaced_action = _utf8(s.action_text)
    calls_json, results_json, exact = "[]", "[]", None
    calls, results = _calls_and_results(s) if s.tool_calls or s.tool_results else ([], [])
    replaced = replaced_observation or replaced_action
    if calls or results:
        try:
            calls_json, results_json = _STRICT.encode(calls), _STRICT.encode(results)
            fits = _fits_jsonb(calls_json) and _fits_jsonb(results_json)
        except ValueError:
            fits = False
        if not fits:
            calls_json, results_json = (json.dumps(_clean_json(x), ensure_ascii=False) for x in (calls, results))
            replaced = True
    if replaced:
        exact = json.dumps([s.observation_text, s.action_text, calls, results]).encode()
    compacted = None if s.compacted is None else strict_json(list(s.compacted), "segment.compacted")
    tool_raw = [r.raw for r in s.tool_results] if results and any(r.raw is not None for r in s.tool_results) else None
    finish = s.finish_reason.value if s.finish_reason is not None else None
    return (
        s.index, s.context, version, token_versions, n_obs, n_act, ids, logprobs, mask, units, finish,
        observation_text, action_text, s.action_raw, calls_json, results_json, tool_raw, exact, compacted, reward,
        float(s.timings.queue_s), float(s.timings.generate_s), float(s.timings.tool_s),
    )  # fmt: skip


def _length(array: np.ndarray | None) -> str:
    return "none" if array is None else str(len(array))


def finite(value: float, field: str) -> float:
    if not math.isfinite(value):
        raise BadValue(f"{field} must be finite, got {value}")
    return float(value)


def end_parameters(end: EpisodeEnd) -> tuple[Any, ...]:
    """Everything `complete_v2` takes after the fence."""
    if (end.outcome is Outcome.INFRASTRUCTURE) != end.termination.is_error():
        raise BadValue(f"end.outcome {end.outcome.value} does not fit end.termination {end.termination.value}")
    head = (end.n_segments, end.termination.value, end.outcome.value, None if end.error is None else clean_text(end.error),
            end.retryable, None if end.sandbox is None else clean_text(end.sandbox), end.evidence)  # fmt: skip
    if end.evidence is not None and (end.outcome is not Outcome.GRADED or end.reward is not None):
        raise BadValue("end.evidence is set although nobody is to grade the episode: it has a reward, or gets none")
    if end.reward is None:
        if end.verdicts:
            raise BadValue("end.verdicts is set although end.reward is not: sub-agents are judged with their episode")
        return (*head, None, None, None, None, None, None)
    if end.outcome is not Outcome.GRADED:
        raise BadValue(f"end.reward is set although end.outcome is {end.outcome.value}")
    return (*head, *reward_parameters(end.reward))


def reward_parameters(r: Reward) -> tuple[Any, ...]:
    """A verdict as the SQL functions take it. `BadValue` for a number that is not finite."""
    return (
        finite(r.value, "reward.value"), r.success, clean_text(r.grader), clean_text(r.grader_version),
        strict_json(dict(r.detail), "reward.detail"), finite(r.duration_s, "reward.duration_s"),
    )  # fmt: skip


def lineage_json(lineage: Lineage) -> str:
    """The lineage as the JSON that the open functions take."""
    value = {name: getattr(lineage, name) for name in Lineage.__slots__ if name not in ("sampling", "origin")}
    sampling = {name: getattr(lineage.sampling, name) for name in Sampling.__slots__}
    return strict_json(value | {"sampling": sampling, "origin": lineage.origin.value}, "lineage")


LINEAGE_COLUMNS = (
    "t.model, t.tokenizer_hash, t.template_hash, t.engine, t.engine_version, t.engine_dtype, t.sampling, t.logprob_kind, "
    "t.environment, t.environment_version, t.sandbox, t.origin"
)


def read_lineage(row: Sequence[Any]) -> Lineage:
    """A lineage from `LINEAGE_COLUMNS`."""
    model, tokenizer, template, engine, version, dtype, sampling, kind, environment, environment_version, sandbox, origin = row
    return Lineage(
        model, tokenizer, template, engine, version, dtype, Sampling(**sampling), kind, environment, environment_version,
        sandbox, Origin(origin),
    )  # fmt: skip


def read_reward(row: Sequence[Any]) -> Reward | None:
    """A reward from (value, success, grader, grader_version, detail, duration_s); None when there is no row."""
    value, success, grader, version, detail, duration = row
    return None if value is None else Reward(value, success, grader, version, detail, duration)


def read_task(task_id: str, payload: Mapping[str, Json], split: str) -> Task:
    return Task(task_id, payload, split)


def check_items(items: Sequence[tuple[UUID, int]], field: str) -> None:
    """`BadValue` when an item is named twice."""
    if len({item for item, _ in items}) != len(items):
        raise BadValue(f"{field} names an item twice")


def trained_arrays(trained: Trained) -> tuple[bytes | None, ...]:
    """The arrays of a trained trajectory as `add_trained_v2` takes them. `BadValue` for a wrong length or no finite number."""
    n = len(trained.logprobs)
    names = ("logprobs", "values", "advantages", "returns")
    per_token = (float_bytes(getattr(trained, name), n, f"trained.{name}") for name in names)
    return (*per_token, float_bytes(trained.local_advantages, None, "trained.local_advantages"))
