"""Model and tool text is data: it is shown, it never acts on the terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import pytest

from agentrl.cli.trajectory_text import trajectory_lines
from agentrl.monitor.terminal import visible
from agentrl.store.sub_agents import adopt
from agentrl.types import (
    FinishReason,
    Lineage,
    Outcome,
    Purpose,
    Reward,
    Sampling,
    Segment,
    StoredTrajectory,
    Termination,
)
from agentrl.view.trajectory_json import trajectory_record


def record_of(*segments: Segment, error: str | None = None) -> StoredTrajectory:
    lineage = Lineage("m", "t", "c", "local", "1", "float32", Sampling())
    return StoredTrajectory(
        UUID(int=1), "task", "env", Purpose.TRAIN, None, 0, 1, 0, 0, Termination.TERMINATED, Outcome.POLICY_ENDED, None,
        lineage, list(segments), error=error,
    )  # fmt: skip


def shown(*segments: Segment, reasoning: bool = False, error: str | None = None) -> str:
    stored = record_of(*segments, error=error)
    return "\n".join(trajectory_lines(stored, [], tokens=False, reasoning=reasoning))


def test_json__has_all_that_is_stored_and_tokens_on_demand() -> None:
    odd = replace(turn(0, "a\x1b[31m"), action_raw=b"\xff", logprobs=np.array([np.nan], np.float32))
    child = replace(record_of(turn(0, "yes")), id=UUID(int=2), parent=UUID(int=1), parent_segment=0)
    stored = replace(record_of(odd), reward=Reward(0.5, True, detail={"why": "x"}), sub_agents=[child])
    text = json.dumps(trajectory_record(stored, [{"at": datetime(2026, 1, 2, tzinfo=UTC), "what": "live"}], tokens=False))
    found = json.loads(text)
    assert "\x1b" not in text
    assert (found["id"], found["termination"], found["reward"]["detail"]) == (str(UUID(int=1)), "terminated", {"why": "x"})
    (segment,) = found["segments"]
    assert (segment["action_text"], segment["action_raw"], segment["n_act"]) == ("a\x1b[31m", "\\xff", 1)
    assert "logprobs" not in segment
    assert found["sub_agents"][0]["parent"] == str(UUID(int=1))
    assert found["events"] == [{"at": "2026-01-02 00:00:00+00:00", "what": "live"}]
    (segment,) = trajectory_record(stored, [], tokens=True)["segments"]
    assert (segment["action"], segment["logprobs"]) == ([1], ["nan"])


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


def test_running__is_not_said_to_have_failed() -> None:
    running = replace(record_of(turn(0, "a")), termination=Termination.FAILED, outcome=Outcome.INFRASTRUCTURE, ended=False)
    assert "no end is written, 1 turns" in "\n".join(trajectory_lines(running, [], tokens=False))
    found = trajectory_record(running, [], tokens=False)
    assert (found["ended"], found["termination"], found["outcome"]) == (False, None, None)


def test_new_context__is_said() -> None:
    assert "context 1: the history was rewritten" in shown(turn(0, "a"), turn(1, "b", context=1))


def test_compaction__says_who_rewrote_the_history() -> None:
    rewritten = replace(turn(1, "b", context=1), compacted=({"role": "user", "content": "so far"},) * 2)
    assert "context 1: the environment put 2 messages in the place of the history" in shown(turn(0, "a"), rewritten)


def test_sub_agents__are_shown_under_the_turn_that_started_them() -> None:
    lineage = Lineage("m", "t", "c", "local", "1", "float32", Sampling())
    root = StoredTrajectory(
        UUID(int=1), "task", "env", Purpose.TRAIN, None, 0, 1, 0, 0, Termination.TERMINATED, Outcome.GRADED, Reward(1.0),
        lineage, [turn(0, "a"), turn(1, "b")],
    )  # fmt: skip
    first = replace(root, id=UUID(int=2), parent=root.id, parent_segment=1, inherits=True, environment="helper\x1b")
    nested = replace(first, id=UUID(int=3), parent=first.id, parent_segment=0)
    lines = list(trajectory_lines(adopt(root, [first, nested]), [], tokens=False))
    listed = [line for line in lines if "sub-agent" in line]
    assert listed == [
        f"      sub-agent {UUID(int=2)}  helper\\x1b, terminated, 2 turns, 4 tokens, reward 1 of its parent",
        f"        sub-agent {UUID(int=3)}  helper\\x1b, terminated, 2 turns, 4 tokens, reward 1 of its parent",
    ]
    assert lines.index(listed[0]) > lines.index("  [1] action, 1 tokens, version 1, stop")
    assert f"  sub-agent helper\\x1b, started in turn 1 of {root.id}" in trajectory_lines(first, [], tokens=False)


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x00b", "\u202egnp.exe", "\r\x08", "\ud800", "\u200b"])
def test_visible_control__is_escaped(text: str) -> None:
    shown = visible(text)
    assert "\\" in shown
    shown.encode()
    assert not set(shown) & set("\x1b\x00\u202e\r\x08\u200b")


def test_visible_plain_text__is_unchanged() -> None:
    assert visible("def f(x): return x  # 日本 ±") == "def f(x): return x  # 日本 ±"
