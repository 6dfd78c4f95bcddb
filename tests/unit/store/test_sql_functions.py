"""Statements that make many calls at once."""

from __future__ import annotations

import uuid

import pytest

from agentrl.store import sql_functions
from agentrl.store.sql_functions import Function, array, one_statement

CALLS = Function("f", "bigint", "bytea[]", "text")


def test_array__elements_and_nulls_in_binary_form() -> None:
    head = bytes.fromhex("00000001 00000001 00000014 00000003 00000001")
    assert array("bigint", [1, None, 2]) == head + bytes.fromhex("00000008 0000000000000001 ffffffff 00000008 0000000000000002")


def test_array__equal_elements_as_unequal_ones() -> None:
    for kind, value, other in (("uuid", uuid.UUID(int=1), uuid.UUID(int=2)), ("text", "ü", "x"), ("boolean", True, False)):
        equal, mixed = array(kind, [value] * 2), array(kind, [value, other])
        assert mixed.startswith(equal[: 20 + (len(equal) - 20) // 2])


def test_one_statement__a_list_of_values_for_each_function() -> None:
    found = one_statement([(CALLS, [(1, None, "a"), (2, None, "b")]), (CALLS, [(3, None, "c")])])
    assert found is not None
    of_one = "array(select f(c0, null::bytea[], c2) from unnest(${}, ${}) calls (c0, c2))"
    assert found[0].text.decode() == f"select {of_one.format(1, 2)}, {of_one.format(3, 4)}"
    assert found[0].oids == [1016, 1009] * 2
    assert len(found[1]) == 4


def test_one_statement__none_when_a_call_holds_an_array() -> None:
    assert one_statement([(CALLS, [(1, None, "a"), (2, [b"raw"], "b")])]) is None


def test_one_statement__none_when_it_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_functions, "LARGEST", 1000)
    assert one_statement([(CALLS, [(1, None, "a" * 2000)])]) is None
