"""SQL functions called for many rows at once: one statement whose parameters are arrays.

Psycopg adapts a list element by element, which costs a client more than the rest of the call, so arrays are encoded here, in
Postgres' binary format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

LARGEST = 16 * 2**20
"""Bytes that the calls of one function may have together: a statement is held whole, in the client and in the server."""

_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_BIGINT = struct.Struct("!iq")
_DOUBLE = struct.Struct("!id")
_NULL = (b"\xff\xff\xff\xff",)


def _sized(raw: bytes) -> tuple[bytes, bytes]:
    return _LENGTH.pack(len(raw)), raw


@dataclass(frozen=True, slots=True)
class _Type:
    """The oids of a type and of its arrays, and the pieces of an element, its length first."""

    oid: int
    array_oid: int
    pack: Callable[[Any], tuple[bytes, ...]]


_TYPES = {
    "bigint": _Type(20, 1016, lambda v: (_BIGINT.pack(8, v),)),
    "boolean": _Type(16, 1000, lambda v: (b"\0\0\0\1\1" if v else b"\0\0\0\1\0",)),
    "bytea": _Type(17, 1001, _sized),
    "double precision": _Type(701, 1022, lambda v: (_DOUBLE.pack(8, v),)),
    "text": _Type(25, 1009, lambda v: _sized(v if type(v) is bytes else v.encode())),
    "uuid": _Type(2950, 2951, lambda v: _sized(v.bytes)),
}


class Encoded:
    """A value in Postgres' binary format; each type has a subclass, by which its dumper is found."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class _EncodedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Encoded) -> bytes:
        return obj.raw


class _Text(Encoded):
    """UTF-8."""

    __slots__ = ()


_ARRAYS: dict[str, type[Encoded]] = {name: type("Array", (Encoded,), {"__slots__": ()}) for name in _TYPES}
_OIDS = {_Text: _TYPES["text"].oid} | {_ARRAYS[name]: t.array_oid for name, t in _TYPES.items()}
_DUMPERS = {kind: type("EncodedDumper", (_EncodedDumper,), {"oid": oid}) for kind, oid in _OIDS.items()}


def register_arrays(connection: Connection) -> None:
    """Let a connection take what this module encodes."""
    for kind, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(kind, dumper)


def array(kind: str, values: Sequence[Any]) -> Encoded:
    """A parameter of type ``kind[]``, one-dimensional and not empty; None is NULL."""
    element, n, first = _TYPES[kind], len(values), values[0]
    pieces = [_HEADER.pack(1, 1, element.oid, n, 1)]
    if values.count(first) == n:
        pieces += (_NULL if first is None else element.pack(first)) * n
    else:
        for value in values:
            pieces += _NULL if value is None else element.pack(value)
    return _ARRAYS[kind](b"".join(pieces))


class Function:
    """A SQL function that returns one value; ``kinds`` are the types of its parameters."""

    def __init__(self, name: str, *kinds: str) -> None:
        self.kinds = kinds
        self.one = f"select {name}({', '.join(['%s'] * len(kinds))})"
        columns = [f"c{i}" for i in range(len(kinds))]
        # Arrays of arrays can't differ in length, so a parameter that is an array is NULL in all calls made together.
        given = [f"null::{kind}" if kind.endswith("[]") else c for c, kind in zip(columns, kinds, strict=True)]
        flat = [c for c, kind in zip(columns, kinds, strict=True) if not kind.endswith("[]")]
        self.many = f"select {name}({', '.join(given)}) from unnest({', '.join(['%s'] * len(flat))}) calls ({', '.join(flat)})"

    def values(self, call: Sequence[Any]) -> list[Any]:
        """The parameters of `one`."""
        return [_Text(v) if type(v) is bytes and kind == "text" else v for kind, v in zip(self.kinds, call, strict=True)]

    def arrays(self, calls: Sequence[Sequence[Any]]) -> list[Encoded] | None:
        """The parameters of `many`, which makes these calls in their order; None when they can't be made so."""
        packed = []
        for kind, column in zip(self.kinds, zip(*calls, strict=True), strict=True):
            if not kind.endswith("[]"):
                packed.append(array(kind, column))
            elif any(value is not None for value in column):
                return None
        return packed if sum(len(p.raw) for p in packed) <= LARGEST else None


def one_statement(groups: Sequence[tuple[Function, Sequence[Sequence[Any]]]]) -> tuple[str, list[Encoded]] | None:
    """A statement that makes all calls, group after group, with a list of values for each; None when there is none."""
    parameters: list[Encoded] = []
    for function, calls in groups:
        arrays = function.arrays(calls)
        if arrays is None:
            return None
        parameters += arrays
    return f"select {', '.join(f'array({function.many})' for function, _ in groups)}", parameters
