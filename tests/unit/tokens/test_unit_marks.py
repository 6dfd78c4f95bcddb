"""Marks of units: from characters of a turn to its tokens."""

from __future__ import annotations

import pytest

from agentrl.tokens.unit_marks import unit_starts

PIECES = {1: b"think", 2: b" then ", 3: b"act", 4: b"\xc3", 5: b"\xa9", 6: b"!", 9: b""}


def decode(ids: list[int]) -> str:
    """Bytes of pieces, as byte-level tokenizers do it; 9 is the stop token, which the text doesn't show."""
    return b"".join(PIECES[i] for i in ids).decode(errors="replace")


@pytest.mark.parametrize(
    ("places", "marks"),
    [
        ((0,), [1, 0, 0, 0]),
        ((0, 11), [1, 0, 1, 0]),
        ((11,), [0, 0, 1, 0]),
        ((0, 13), [1, 0, 1, 0]),  # inside of "act"
        ((0, 4, 5), [1, 1, 0, 0]),  # 0 and 4 lie in one token
        ((), [0, 0, 0, 0]),
    ],
)
def test_place__marks_the_token_that_holds_its_character(places: tuple[int, ...], marks: list[int]) -> None:
    assert unit_starts(decode, [1, 2, 3, 9], places).tolist() == marks


def test_character_of_several_tokens__marks_the_first_that_shows_it() -> None:
    assert unit_starts(decode, [3, 4, 5, 6], (3,)).tolist() == [0, 1, 0, 0]
    assert unit_starts(decode, [3, 4, 5, 6], (4,)).tolist() == [0, 0, 0, 1]


def test_turn_without_text__its_start_is_its_first_token() -> None:
    assert unit_starts(decode, [9], (0,)).tolist() == [1]
    assert unit_starts(decode, [9], ()).tolist() == [0]
