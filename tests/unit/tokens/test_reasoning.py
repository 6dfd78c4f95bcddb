"""Reasoning comes first, stays in the ids, and holds no calls."""

from __future__ import annotations

import pytest

from agentrl.tokens.reasoning import answer_start, opens
from agentrl.tokens.tool_calls import parse

CALL = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "opened", "answer"),
    [
        ("answer", False, "answer"),
        ("<think>a</think>b", False, "b"),
        ("\n<think>\na\n</think>\n\nb", False, "\n\nb"),
        ("[THINK]a[/THINK]b", False, "b"),
        ("<think>never closed", False, ""),
        ("a</think>b", True, "b"),
        ("never closed", True, ""),
        ("echo </think> x", False, "echo </think> x"),
        ("b <think>late</think>", False, "b <think>late</think>"),
        ("<think></think><think>a</think>", False, "<think>a</think>"),
        ("", True, ""),
    ],
)
def test_answer__begins_after_a_leading_block(text: str, opened: bool, answer: str) -> None:
    assert text[answer_start(text, opened=opened) :] == answer


def test_prompt_that_ends_inside_reasoning__is_known() -> None:
    assert opens("<|im_start|>assistant\n<think>\n")
    assert not opens("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_call_inside_of_reasoning__was_thought_of_and_not_made() -> None:
    parsed = parse(f"<think>maybe {CALL}</think>\n{CALL}")
    assert len(parsed.calls) == 1
    assert parsed.reasoning == f"<think>maybe {CALL}</think>"
    assert parsed.content == "\n"


def test_reasoning_alone__is_a_legal_turn() -> None:
    parsed = parse("<think>only this")
    assert (parsed.content, parsed.calls) == ("", ())
