"""A trajectory as one JSON object: all that is stored of it, token ids and log-probs when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from agentrl.types import Segment, StoredTrajectory

_ARRAYS = ("observation", "action", "logprobs", "versions", "loss_mask", "unit_starts")


def trajectory_record(stored: StoredTrajectory, events: Sequence[Mapping[str, Any]], *, tokens: bool) -> dict[str, Any]:
    """What `json.dumps` takes. Bytes are written as Postgres shows them, numbers that are none by their names."""
    inner = ("segments", "sub_agents")
    named = {field.name: plain(getattr(stored, field.name)) for field in fields(StoredTrajectory) if field.name not in inner}
    if not stored.ended:
        named |= {"termination": None, "outcome": None}
    return {
        **named,
        "segments": [_segment(segment, tokens) for segment in stored.segments],
        "sub_agents": [trajectory_record(child, [], tokens=tokens) for child in stored.sub_agents],
        "events": plain(list(events)),
    }


def _segment(segment: Segment, tokens: bool) -> dict[str, Any]:
    named = [field.name for field in fields(Segment) if tokens or field.name not in _ARRAYS]
    counts = {"n_obs": segment.n_obs, "n_act": segment.n_act, "policy_versions": sorted(set(segment.versions.tolist()))}
    return counts | {name: plain(getattr(segment, name)) for name in named}


def plain(value: Any) -> Any:
    """What `json.dumps` takes, of rows and of what is stored."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Sequence):
        return [plain(inner) for inner in value]
    return str(value)  # ids and times
