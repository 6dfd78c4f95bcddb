"""Bounded output: what is kept, and that totals are exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.agent.output import HeadTail


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 400))
def test_any_pieces__keep_both_ends_and_count_all(pieces: list[bytes], limit: int) -> None:
    kept = HeadTail(limit)
    for piece in pieces:
        kept.add(piece)
    whole = b"".join(pieces)
    assert kept.total == len(whole)
    assert kept.truncated == (len(whole) > limit)
    if not kept.truncated:
        assert kept.kept() == whole
        return
    head, tail = limit - limit // 2, limit // 2
    mark = b"\n[... %d bytes omitted ...]\n" % (len(whole) - limit)
    assert kept.kept() == whole[:head] + mark + whole[len(whole) - tail :]


def test_long_stream__needs_bounded_memory() -> None:
    kept = HeadTail(1000)
    for _ in range(10_000):
        kept.add(bytes(1000))
        assert len(kept._head) + len(kept._tail) < 100_000
    assert kept.total == 10_000_000
