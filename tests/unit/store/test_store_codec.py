"""Texts, JSON and segments on their way to the database and back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import BadValue
from agentrl.store.codec import SEGMENT_COLUMNS, check_items, clean_text, read_segment, segment_parameters, strict_json
from agentrl.types import Segment, ToolCall, ToolResult


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


def test_segment_hash__content_counts_and_timings_do_not() -> None:
    def digest(s: Segment) -> bytes:
        found: bytes = segment_parameters(s)[1]
        return found

    base = digest(segment())
    assert digest(segment()) == base
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
    ):
        assert digest(segment(**changes)) != base, changes
    # The border between observation and action is part of the content.
    moved = segment(
        observation=np.array([1, 2], np.int32), action=np.array([3], np.int32), logprobs=np.array([-1], np.float32),
        versions=np.array([4], np.int32),
    )  # fmt: skip
    assert digest(moved) != base
    assert digest(segment(action_text="\x00")) != digest(segment(action_text="\N{REPLACEMENT CHARACTER}"))


def test_segment_trivial_columns__null() -> None:
    names = ["seg", "hash", *SEGMENT_COLUMNS.replace("versions[1]", "version").split(", ")[1:]]
    plain = dict(zip(names, segment_parameters(segment(loss_mask=np.ones(2, np.uint8))), strict=True))
    assert (plain["version"], plain["token_versions"], plain["loss_mask"], plain["exact"]) == (4, None, None, None)
    mixed = dict(zip(names, segment_parameters(segment(versions=np.array([4, 5], np.int32))), strict=True))
    assert np.frombuffer(mixed["token_versions"], "<i4").tolist() == [4, 5]


def test_segment_empty_action__reads_back_empty() -> None:
    empty = Segment(3, np.array([7], np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))
    seg, _, *columns = segment_parameters(empty)
    columns[12:14] = [json.loads(c) for c in columns[12:14]]
    read = read_segment([seg, *columns])
    assert (read.index, read.n_obs, read.n_act, read.versions.dtype) == (3, 1, 0, np.int32)


def test_items_named_twice__refused() -> None:
    check_items([], "items")
    with pytest.raises(BadValue, match="twice"):
        check_items([(segment.__hash__(), 1)] * 2, "items")  # type: ignore[list-item]
