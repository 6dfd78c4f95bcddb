"""Frames of the protocol, shared by both ends: u32 length, JSON header, raw body of ``header["n"]`` bytes.

A peer that breaks a limit or the format gets `FrameError`: its stream can't be trusted any further.
"""

from __future__ import annotations

import json
import struct
from typing import Any

PROTOCOL_VERSION = 2
MAX_HEADER = 1 << 20
MAX_BODY = 40 << 20

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """The bytes are no frame, or one beyond the limits."""


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One frame. `FrameError` when header or body is beyond the limits."""
    text = json.dumps({**header, "n": len(body)}).encode()
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise FrameError(f"frame too large: header {len(text)} of {MAX_HEADER} bytes, body {len(body)} of {MAX_BODY}")
    return _LENGTH.pack(len(text)) + text + body


class FrameBuffer:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._bytes += data

    def pop(self) -> tuple[dict[str, Any], bytes] | None:
        """The next whole frame, or None."""
        if self._header is None:
            self._header = self._pop_header()
            if self._header is None:
                return None
        size = self._header["n"]
        if len(self._bytes) < size:
            return None
        header, self._header = self._header, None
        body = bytes(memoryview(self._bytes)[:size])
        del self._bytes[:size]
        return header, body

    def _pop_header(self) -> dict[str, Any] | None:
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > MAX_HEADER:
            raise FrameError(f"header of {length} bytes, limit {MAX_HEADER}")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        try:
            header = json.loads(bytes(self._bytes[_LENGTH.size : end]))
        except (ValueError, RecursionError) as error:
            raise FrameError(f"header is not JSON: {error}") from None
        if not isinstance(header, dict) or type(header.get("n")) is not int or not 0 <= header["n"] <= MAX_BODY:
            raise FrameError("header is no object with a body size within the limit")
        del self._bytes[:end]
        return header
