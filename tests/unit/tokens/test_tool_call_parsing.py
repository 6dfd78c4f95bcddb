"""Any string is a legal turn; calls are found where JSON says they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tokens.tool_calls import parse


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def test_closing_tag_inside_a_string__is_text() -> None:
    parsed = parse(call("bash", cmd="echo </tool_call> test"))
    assert parsed.content == ""
    assert parsed.calls[0].arguments == {"cmd": "echo </tool_call> test"}


def test_two_calls_nested_and_unicode__both_in_order_with_text_around() -> None:
    nested = {"b": [1, {"c": "}"}]}
    parsed = parse(f"first {call('x', a=nested)} then\n{call('y', q='日本')} end")
    assert parsed.content == "first  then\n end"
    assert [(c.name, c.arguments, c.error) for c in parsed.calls] == [("x", {"a": nested}, None), ("y", {"q": "日本"}, None)]


def test_raw_newline_inside_a_string__accepted() -> None:
    parsed = parse('<tool_call>\n{"name": "y", "arguments": {"q": "a\nb"}}\n</tool_call>')
    assert parsed.calls[0].arguments == {"q": "a\nb"}


def test_no_arguments__empty_object() -> None:
    assert parse('<tool_call>{"name": "now"}</tool_call>').calls[0].arguments == {}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"na', "not valid JSON"),
        ("", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1,}', "not valid JSON"),
        ('{"name": "x", "arguments": {"a": NaN}}', "NaN"),
        ('{"name": "x", "arguments": {"a": 1e999}}', "out of range"),
        ('{"name": "x", "arguments": {"a": "\\u0000"}}', "U+0000"),
        ('{"name": "x", "arguments": {"a": "\\ud800"}}', "surrogate"),
        ('{"name": "x", "arguments": "{}"}', '"arguments" is a JSON object'),
        ('{"name": "x", "arguments": null}', '"arguments" is a JSON object'),
        ('{"arguments": {}}', "name"),
        ('{"name": 3}', "name"),
        ('["x"]', "not list"),
        ("[" * 100_000, "deep"),
        ('{"name": "x", "arguments": {"a": "\\u0000", "b": ' + "[" * 600 + "]" * 600 + "}}", "U+0000|deep"),
        ('{"name": "x", "arguments": {"a": ' + "9" * 5000 + "}}", "JSON"),
        ('{"name": "x"} trailing', "no </tool_call>"),
    ],
)
def test_malformed_call__is_a_call_with_an_error(body: str, reason: str) -> None:
    parsed = parse(f"before <tool_call>{body}</tool_call> after {call('ok')}")
    bad, good = parsed.calls
    assert bad.arguments is None
    assert bad.error is not None
    assert any(part in bad.error for part in reason.split("|"))
    assert good.arguments == {}
    assert parsed.content == "before  after "


def test_call_that_is_cut__error_and_nothing_after_it() -> None:
    parsed = parse('text <tool_call>{"name": "rm", "arguments": {"path": "/tmp/x"')
    assert [c.arguments for c in parsed.calls] == [None]
    assert parse('<tool_call>{"name": "rm", "arguments": {}}').calls[0].arguments is None


def test_malformed_call_before_a_good_one__good_one_is_found() -> None:
    parsed = parse('<tool_call>{"name": oops ' + call("ok"))
    assert [c.arguments for c in parsed.calls] == [None, {}]


def test_stray_closing_tag__is_content() -> None:
    parsed = parse("a </tool_call> b")
    assert parsed.content == "a </tool_call> b"
    assert parsed.calls == ()


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "x"', ', "arguments": {}}', "}", "[", '"', "\\u0000", "\ud800", " "]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join))
def test_model_output_is_data__no_string_raises(text: str) -> None:
    parsed = parse(text)
    assert len(parsed.calls) <= text.count("<tool_call>")
    for found in parsed.calls:
        assert (found.arguments is None) == (found.error is not None)
        if found.arguments is not None:
            json.dumps(found.arguments, allow_nan=False, ensure_ascii=False).encode()
