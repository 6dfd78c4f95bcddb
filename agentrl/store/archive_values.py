"""Values of an archive: between Postgres's binary format, Python and JSON, exact in every direction.

What a column holds in Python, by its type in the database:

- bigint: int. double precision: float. boolean: bool. text, uuid: str. bytea: bytes. An array: a list, None where NULL.
- timestamp with time zone: int, microseconds since 1970 in UTC; the greatest and the least 64-bit number stand for infinity.
- interval: [months, days, microseconds]. json and jsonb: str, the text as stored.

JSON holds bytes as base64 and floats that are not finite as the words NaN, Infinity and -Infinity.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

Value = Any

_EPOCH_US = 946_684_800_000_000
_ENDLESS = (2**63 - 1, -(2**63))
_OIDS = {"bigint": 20, "uuid": 2950, "bytea": 17, "text": 25}


def _time_from_wire(raw: bytes) -> int:
    (n,) = struct.unpack("!q", raw)
    return int(n) if n in _ENDLESS else int(n) + _EPOCH_US


def _time_to_wire(value: int) -> bytes:
    return struct.pack("!q", value if value in _ENDLESS else value - _EPOCH_US)


def _interval_from_wire(raw: bytes) -> list[int]:
    microseconds, days, months = struct.unpack("!qii", raw)
    return [months, days, microseconds]


def _interval_to_wire(value: list[int]) -> bytes:
    months, days, microseconds = value
    return struct.pack("!qii", microseconds, days, months)


def _jsonb_from_wire(raw: bytes) -> str:
    if raw[:1] != b"\x01":
        raise ValueError(f"jsonb of format {raw[:1]!r}")
    return raw[1:].decode()


_FROM_WIRE: dict[str, Callable[[bytes], Value]] = {
    "bigint": lambda raw: struct.unpack("!q", raw)[0],
    "double precision": lambda raw: struct.unpack("!d", raw)[0],
    "boolean": lambda raw: raw == b"\x01",
    "text": bytes.decode,
    "uuid": lambda raw: str(UUID(bytes=bytes(raw))),
    "bytea": bytes,
    "json": bytes.decode,
    "jsonb": _jsonb_from_wire,
    "timestamp with time zone": _time_from_wire,
    "interval": _interval_from_wire,
}
_TO_WIRE: dict[str, Callable[[Value], bytes]] = {
    "bigint": lambda value: struct.pack("!q", value),
    "double precision": lambda value: struct.pack("!d", value),
    "boolean": lambda value: b"\x01" if value else b"\x00",
    "text": str.encode,
    "uuid": lambda value: UUID(value).bytes,
    "bytea": bytes,
    "json": str.encode,
    "jsonb": lambda value: b"\x01" + value.encode(),
    "timestamp with time zone": _time_to_wire,
    "interval": _interval_to_wire,
}


def from_wire(kind: str) -> Callable[[bytes], Value]:
    """Reads a field of a binary COPY of this type."""
    if kind.endswith("[]"):
        element = _FROM_WIRE[kind.removesuffix("[]")]
        return lambda raw: _array_from_wire(raw, element)
    return _FROM_WIRE[kind]


def to_wire(kind: str) -> Callable[[Value], bytes]:
    """Writes a field of a binary COPY of this type."""
    if kind.endswith("[]"):
        name = kind.removesuffix("[]")
        return lambda value: _array_to_wire(value, _TO_WIRE[name], _OIDS[name])
    return _TO_WIRE[kind]


def _array_from_wire(raw: bytes, element: Callable[[bytes], Value]) -> list[Value]:
    dimensions, _, _ = struct.unpack_from("!iiI", raw)
    if dimensions == 0:
        return []
    size, first = struct.unpack_from("!ii", raw, 12)
    if (dimensions, first) != (1, 1):
        raise ValueError(f"array of {dimensions} dimensions from {first}")
    values, at = [], 20
    for _ in range(size):
        (length,) = struct.unpack_from("!i", raw, at)
        at += 4
        values.append(None if length < 0 else element(raw[at : at + length]))
        at += max(length, 0)
    return values


def _array_to_wire(values: list[Value], element: Callable[[Value], bytes], oid: int) -> bytes:
    if not values:
        return struct.pack("!iiI", 0, 0, oid)
    parts = [struct.pack("!iiIii", 1, any(v is None for v in values), oid, len(values), 1)]
    for value in values:
        raw = None if value is None else element(value)
        parts.append(struct.pack("!i", -1) if raw is None else struct.pack("!i", len(raw)) + raw)
    return b"".join(parts)


def to_json(kind: str) -> Callable[[Value], Value] | None:
    """What makes a value of this type fit for JSON; None where it is already."""
    if kind == "bytea":
        return lambda value: base64.b64encode(value).decode()
    if kind == "bytea[]":
        return lambda values: [None if v is None else base64.b64encode(v).decode() for v in values]
    if kind == "double precision":
        return lambda value: value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
    return None


def from_json(kind: str) -> Callable[[Value], Value] | None:
    """The way back."""
    if kind == "bytea":
        return lambda value: base64.b64decode(value, validate=True)
    if kind == "bytea[]":
        return lambda values: [None if v is None else base64.b64decode(v, validate=True) for v in values]
    if kind == "double precision":
        return float
    return None
