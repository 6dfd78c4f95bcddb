"""Frames cut from any stream are the frames that were written; anything beyond the limits is refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.agent import frames

HEADERS = st.dictionaries(st.text().filter(lambda name: name != "n"), st.integers() | st.text() | st.none() | st.booleans())


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=200)), max_size=5), st.integers(1, 50))
def test_stream_cut_anywhere__gives_the_frames_back(sent: list[tuple[dict[str, object], bytes]], step: int) -> None:
    stream = b"".join(frames.encode(header, body) for header, body in sent)
    buffer, received = frames.FrameBuffer(), []
    for start in range(0, len(stream), step):
        buffer.feed(stream[start : start + step])
        while frame := buffer.pop():
            received.append(frame)
    assert received == [({**header, "n": len(body)}, body) for header, body in sent]


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack(">I", frames.MAX_HEADER + 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"{}",
        *[
            struct.pack(">I", len(text)) + text
            for text in (json.dumps({"n": size}).encode() for size in (-1, 1.5, "1", True, None, frames.MAX_BODY + 1))
        ],
        struct.pack(">I", 40000) + b"[" * 40000,
    ],
)
def test_stream_that_is_no_frame__is_refused(stream: bytes) -> None:
    buffer = frames.FrameBuffer()
    buffer.feed(stream)
    with pytest.raises(frames.FrameError):
        buffer.pop()


def test_frame_beyond_the_limits__is_not_encoded() -> None:
    with pytest.raises(frames.FrameError, match="too large"):
        frames.encode({}, bytes(frames.MAX_BODY + 1))
    with pytest.raises(frames.FrameError, match="too large"):
        frames.encode({"argument": "x" * frames.MAX_HEADER})
