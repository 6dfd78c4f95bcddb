"""SQL functions called in Postgres' binary format: one call, or many in one statement whose parameters are arrays.

The driver adapts values, and elements of lists, one by one, which costs a client more than the rest of the call; so those of
the calls made most often are encoded here. Texts are UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LARGEST = 16 * 2**20
"""Bytes that the calls of one function may have together: a statement is held whole, in the client and in the server."""

_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_BIGINT = struct.Struct("!q")
_DOUBLE = struct.Struct("!d")
_NULL = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class _Type:
    """The oids of a type and of its arrays, how a value is encoded, and how long it is where that is always the same."""

    oid: int
    array_oid: int
    encode: Callable[[Any], bytes]
    length: bytes | None = None


_TYPES = {
    "bigint": _Type(20, 1016, _BIGINT.pack, _LENGTH.pack(8)),
    "boolean": _Type(16, 1000, lambda v: b"\1" if v else b"\0", _LENGTH.pack(1)),
    "bytea": _Type(17, 1001, lambda v: v),
    "double precision": _Type(701, 1022, _DOUBLE.pack, _LENGTH.pack(8)),
    "text": _Type(25, 1009, lambda v: v if type(v) is bytes else v.encode()),
    "uuid": _Type(2950, 2951, lambda v: v.bytes, _LENGTH.pack(16)),
}


def _encoder(kind: str) -> tuple[int, Callable[[Any], bytes]]:
    """The oid of a parameter of ``kind``, which may be an array, and what encodes its values."""
    element = kind.removesuffix("[]")
    if element == kind:
        return _TYPES[kind].oid, _TYPES[kind].encode
    return _TYPES[element].array_oid, lambda values: array(element, values)


def array(kind: str, values: Sequence[Any]) -> bytes:
    """A value of type ``kind[]``, one-dimensional and not empty; None is NULL."""
    element, n, first = _TYPES[kind], len(values), values[0]
    pieces = [_HEADER.pack(1, 1, element.oid, n, 1)]
    if values.count(first) == n:
        pieces += _element(element, first) * n
    else:
        for value in values:
            pieces += _element(element, value)
    return b"".join(pieces)


def _element(element: _Type, value: Any) -> tuple[bytes, ...]:
    if value is None:
        return (_NULL,)
    raw = element.encode(value)
    return element.length or _LENGTH.pack(len(raw)), raw


class Statement:
    """SQL with $1, $2 ... for parameters of the given kinds, which travel in binary."""

    def __init__(self, text: str, *kinds: str) -> None:
        self.text = text.encode()
        encoders = [_encoder(kind) for kind in kinds]
        self.oids = [oid for oid, _ in encoders]
        self.formats = [1] * len(kinds)
        self._encoders = [encode for _, encode in encoders]

    def encoded(self, values: Sequence[Any]) -> list[bytes | None]:
        """The parameters; None is NULL."""
        return [None if v is None else encode(v) for encode, v in zip(self._encoders, values, strict=True)]


class Function:
    """A SQL function that returns one value, a text or a boolean; ``kinds`` are the types of its parameters."""

    def __init__(self, name: str, *kinds: str, returns: str = "text") -> None:
        self.name, self.kinds = name, kinds
        self.call = Statement(f"select {name}({', '.join(f'${i + 1}' for i in range(len(kinds)))})", *kinds)
        self.one = f"select {name}({', '.join(['%s'] * len(kinds))})"
        """For the driver, whose parameters are `values`: within a transaction of several statements."""
        self.decode: Callable[[bytes], Any] = bytes.decode if returns == "text" else lambda raw: raw == b"\1"
        self.flat = [kind for kind in kinds if not kind.endswith("[]")]

    def values(self, call: Sequence[Any]) -> list[Any]:
        """The parameters of `one`."""
        return [v.decode() if type(v) is bytes and kind == "text" else v for kind, v in zip(self.kinds, call, strict=True)]

    def many(self, first: int) -> str:
        """SQL that makes calls in their order from one array a parameter, the first of which is $``first``."""
        columns = [f"c{i}" for i in range(len(self.kinds))]
        # Arrays of arrays can't differ in length, so a parameter that is an array is NULL in all calls made together.
        given = [f"null::{kind}" if kind.endswith("[]") else c for c, kind in zip(columns, self.kinds, strict=True)]
        flat = [c for c, kind in zip(columns, self.kinds, strict=True) if not kind.endswith("[]")]
        places = (f"${first + i}" for i in range(len(flat)))
        return f"select {self.name}({', '.join(given)}) from unnest({', '.join(places)}) calls ({', '.join(flat)})"

    def arrays(self, calls: Sequence[Sequence[Any]]) -> list[bytes] | None:
        """The parameters of `many`; None when the calls can't be made so."""
        packed = []
        for kind, column in zip(self.kinds, zip(*calls, strict=True), strict=True):
            if not kind.endswith("[]"):
                packed.append(array(kind, column))
            elif any(value is not None for value in column):
                return None
        return packed if sum(map(len, packed)) <= LARGEST else None


@lru_cache(maxsize=64)
def _statement_of(functions: tuple[Function, ...]) -> Statement:
    """Calls of these functions, of each a list of values."""
    selected: list[str] = []
    kinds: list[str] = []
    for function in functions:
        selected.append(f"array({function.many(len(kinds) + 1)})")
        kinds += [f"{kind}[]" for kind in function.flat]
    return Statement(f"select {', '.join(selected)}", *kinds)


def one_statement(
    groups: Sequence[tuple[Function, Sequence[Sequence[Any]]]],
) -> tuple[Statement, list[bytes | None]] | None:
    """A statement that makes all calls, group after group, with a list of values for each; None when there is none."""
    parameters: list[bytes | None] = []
    for function, calls in groups:
        arrays = function.arrays(calls)
        if arrays is None:
            return None
        parameters += arrays
    return _statement_of(tuple(function for function, _ in groups)), parameters
