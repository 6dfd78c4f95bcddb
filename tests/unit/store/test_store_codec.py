"""Texts, JSON and segments on their way to the database and back."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import BadValue
from agentrl.store.codec import CONTENT, check_items, clean_text, segment_parameters, strict_json
from agentrl.store.stored_segment import NUMBERS, StoredSegment, read_segments
from agentrl.types import FinishReason, Segment, Timings, ToolCall, ToolResult


def segment(**changes: Any) -> Segment:
    made = Segment(
        0, np.array([1], np.int32), np.array([2, 3], np.int32), np.array([-1, -2], np.float32), np.array([4, 4], np.int32)
    )
    return replace(made, **changes)


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=20))
def test_clean_text__always_storable_and_unchanged_when_it_was(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert len(cleaned) == len(text)
    storable = "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
    assert (cleaned is text) == storable or cleaned == text


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": math.nan}, "field.a is nan"),
        ({"a": [1, {"b": -math.inf}]}, r"field.a\[1\].b is -inf"),
        ({"a": "x\x00"}, "field.a holds"),
        ({"a\ud800": 1}, "a key of field holds"),
        ({"a": object()}, "not JSON serializable"),
        (["\udfff"], r"field\[0\] holds"),
    ],
)
def test_strict_json_unstorable__place_named(value: Any, where: str) -> None:
    with pytest.raises(BadValue, match=where):
        strict_json(value, "field")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
    alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\x00")), lambda s: st.lists(s) | st.dictionaries(
    st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\x00")), s), max_leaves=8))  # fmt: skip
def test_strict_json_storable__round_trip(value: Any) -> None:
    assert json.loads(strict_json(value, "field")) == value


def test_strict_json_spelt_out_escape__is_only_text() -> None:
    assert json.loads(strict_json({"a": "\\u0000"}, "field")) == {"a": "\\u0000"}


def test_segment_content__all_but_index_and_timings() -> None:
    def content(s: Segment) -> tuple[Any, ...]:
        return segment_parameters(s)[CONTENT]

    base = content(segment())
    assert content(segment(index=1, timings=Timings(1, 2, 3))) == base
    for changes in (
        {"action": np.array([2, 4], np.int32)},
        {"versions": np.array([4, 5], np.int32)},
        {"versions": np.array([5, 5], np.int32)},
        {"logprobs": np.array([-1, -3], np.float32)},
        {"loss_mask": np.array([0, 1], np.uint8)},
        {"observation_text": "x"},
        {"action_text": "x"},
        {"action_raw": b""},
        {"context": 1},
        {"reward": 0.0},
        {"tool_calls": (ToolCall("t", {}),)},
        {"tool_results": (ToolResult("t", "", raw=b""),)},
        {"compacted": ({"role": "user", "content": "a"},)},
    ):
        assert content(segment(**changes)) != base, changes
    # The border between observation and action is part of the content.
    moved = segment(
        observation=np.array([1, 2], np.int32), action=np.array([3], np.int32), logprobs=np.array([-1], np.float32),
        versions=np.array([4], np.int32),
    )  # fmt: skip
    assert content(moved) != base
    assert content(segment(action_text="\x00")) != content(segment(action_text="\N{REPLACEMENT CHARACTER}"))


NAMES = [
    "seg", "context", "version", "token_versions", "n_obs", "n_act", "ids", "logprobs", "loss_mask", "unit_starts",
    "finish_reason", "observation_text", "action_text", "action_raw", "tool_calls", "tool_results", "tool_raw", "exact",
    "compacted", "reward", "queue_s", "generate_s", "tool_s",
]  # fmt: skip


def columns(s: Segment) -> dict[str, Any]:
    return dict(zip(NAMES, segment_parameters(s), strict=True))


class Result:
    """Rows as a result holds them: numbers in one value, texts in UTF-8."""

    def __init__(self, *segments: Segment) -> None:
        self.rows = [(0, columns(s)) for s in segments]
        self.ntuples = len(segments)
        self.decoded: list[int] = []

    def get_value(self, row: int, column: int) -> bytes | None:
        assert column == 0, "only the numbers and arrays are read at once"
        place, found = self.rows[row]
        numbers = (found["seg"], found["context"], found["version"] or 0, found["n_obs"], found["n_act"])
        finish, reward = found["finish_reason"], found["reward"]
        there = (found[name] is not None for name in ("loss_mask", "token_versions", "unit_starts"))
        head = NUMBERS.pack(
            place, *numbers, 0 if finish is None else 1 + list(FinishReason).index(FinishReason(finish)), *there,
            math.nan if reward is None else reward,
        )  # fmt: skip
        arrays = ("ids", "logprobs", "token_versions", "loss_mask", "unit_starts")
        return head + b"".join(found[name] or b"" for name in arrays)

    def decode(self, row: int) -> tuple[Any, ...]:
        self.decoded.append(row)
        found = self.rows[row][1]
        texts = (found["observation_text"].decode(), found["action_text"].decode())
        names = (
            "action_raw",
            "tool_calls",
            "tool_results",
            "tool_raw",
            "exact",
            "queue_s",
            "generate_s",
            "tool_s",
            "compacted",
        )
        return (None, *texts, *(found[name] for name in names))


def stored(s: Segment, result: Result | None = None) -> Segment:
    """As read back, without a database between."""
    made = result or Result(s)
    ((read,),) = read_segments(1, made, made.decode)  # type: ignore[arg-type]
    return read


def test_segment_trivial_columns__null() -> None:
    plain = columns(segment(loss_mask=np.ones(2, np.uint8)))
    assert (plain["version"], plain["token_versions"], plain["loss_mask"], plain["exact"]) == (4, None, None, None)
    mixed = columns(segment(versions=np.array([4, 5], np.int32)))
    assert np.frombuffer(mixed["token_versions"], "<i4").tolist() == [4, 5]


def test_segment_empty_action__reads_back_empty() -> None:
    read = stored(Segment(3, np.array([7], np.int32), *(np.zeros(0, t) for t in (np.int32, np.float32, np.int32))))
    assert (read.index, read.n_obs, read.n_act, read.versions.dtype) == (3, 1, 0, np.int32)


SAID = segment(
    observation_text="see \x00 this", action_text="call", action_raw=b"call", tool_calls=(ToolCall("t", {"a": 1}),),
    tool_results=(ToolResult("t", "done", raw=b"\xff"),), timings=Timings(0.1, 0.2, 0.3), finish_reason=FinishReason.STOP,
    reward=0.5, context=2, compacted=({"role": "user", "content": "so far: \N{SNOWMAN}"},),
)  # fmt: skip


def test_stored_segment__decodes_the_rest_when_asked() -> None:
    result = Result(SAID)
    read = stored(SAID, result)
    assert isinstance(read, StoredSegment)
    assert (read.context, read.reward, read.finish_reason) == (2, 0.5, FinishReason.STOP)
    assert result.decoded == [], "arrays and numbers need no decoding"
    assert read.tool_results == SAID.tool_results
    assert (read.observation_text, read.timings, read.tool_calls) == (SAID.observation_text, SAID.timings, SAID.tool_calls)
    assert result.decoded == [0], "once"
    assert read._rest is None, "the result is no longer held"
    with pytest.raises(AttributeError, match="no attribute 'text'"):
        read.text  # type: ignore[attr-defined]  # noqa: B018


def test_stored_segment__copies_are_plain_segments() -> None:
    assert repr(stored(SAID)) == repr(SAID)
    for made in (replace(stored(SAID), index=5), copy.copy(stored(SAID)), pickle.loads(pickle.dumps(stored(SAID)))):
        assert type(made) is Segment
        assert repr(replace(made, index=0)) == repr(SAID)
    assert hash(stored(SAID).tool_results) == hash(SAID.tool_results)


def test_items_named_twice__refused() -> None:
    check_items([], "items")
    with pytest.raises(BadValue, match="twice"):
        check_items([(segment.__hash__(), 1)] * 2, "items")  # type: ignore[list-item]
