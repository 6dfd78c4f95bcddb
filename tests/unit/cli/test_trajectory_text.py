"""Model and tool text is data: it is shown, it never acts on the terminal."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest

from agentrl.cli.trajectory_text import trajectory_lines, visible
from agentrl.types import (
    FinishReason,
    Lineage,
    Outcome,
    Purpose,
    Sampling,
    Segment,
    StoredTrajectory,
    Termination,
)


def shown(*segments: Segment, reasoning: bool = False, error: str | None = None) -> str:
    lineage = Lineage("m", "t", "c", "local", "1", "float32", Sampling())
    stored = StoredTrajectory(
        UUID(int=1), "task", "env", Purpose.TRAIN, None, 0, 1, 0, 0, Termination.TERMINATED, Outcome.POLICY_ENDED, None,
        lineage, list(segments), error,
    )  # fmt: skip
    return "\n".join(trajectory_lines(stored, [], tokens=False, reasoning=reasoning))


def turn(index: int, text: str, context: int = 0, observed: str = "?") -> Segment:
    one, floats = np.ones(1, np.int32), np.zeros(1, np.float32)
    return Segment(
        index, one, one, floats, one, context=context, finish_reason=FinishReason.STOP, observation_text=observed,
        action_text=text,
    )  # fmt: skip


def test_reasoning__is_folded_to_one_line_unless_asked_for() -> None:
    text = "<think>\na long\nthought\n</think>\n\nthe answer"
    folded = shown(turn(0, text))
    assert "thought" not in folded
    assert "(reasoning: 31 characters, 4 lines; --reasoning shows it)" in folded
    assert "| the answer" in folded
    assert "| thought" in shown(turn(0, text), reasoning=True)


def test_reasoning_that_the_prompt_opened__is_folded_too() -> None:
    folded = shown(turn(0, "secret\n</think>answer", observed="<|im_start|>assistant\n<think>\n"))
    assert "secret" not in folded
    assert "| answer" in folded


def test_failure__is_said_with_its_reason() -> None:
    assert "failed: EnvironmentFault: it raised\\x1b[31m" in shown(turn(0, "a"), error="EnvironmentFault: it raised\x1b[31m")
    assert "failed:" not in shown(turn(0, "a"))


def test_new_context__is_said() -> None:
    assert "context 1: the history was rewritten" in shown(turn(0, "a"), turn(1, "b", context=1))


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x00b", "\u202egnp.exe", "\r\x08", "\ud800", "\u200b"])
def test_visible_control__is_escaped(text: str) -> None:
    shown = visible(text)
    assert "\\" in shown
    shown.encode()
    assert not set(shown) & set("\x1b\x00\u202e\r\x08\u200b")


def test_visible_plain_text__is_unchanged() -> None:
    assert visible("def f(x): return x  # 日本 ±") == "def f(x): return x  # 日本 ±"
