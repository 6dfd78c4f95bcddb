"""The turns of a trajectory as a page shows them: what was observed, thought, answered, called and returned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.tokens.reasoning import answer_start, opens
from agentrl.types import Segment, StoredTrajectory, ToolCall
from agentrl.view.shown import Shown, shown

PAGE = 100
"""Turns of one page."""


@dataclass(frozen=True, slots=True)
class Call:
    """``error`` says why a call could not be parsed; then there are no arguments, and the action holds it as it was written."""

    name: str
    arguments: Shown
    error: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """``part`` names the exact bytes for a download."""

    name: str
    text: Shown
    is_error: bool
    duration_s: float
    bytes: int
    part: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One segment. ``note``: what became of the history before it. ``children``: sub-agents that it started."""

    index: int
    note: str | None
    observation: Shown
    n_obs: int
    reasoning: Shown | None
    answer: Shown
    n_act: int
    versions: str
    finish_reason: str | None
    reward: float | None
    calls: Sequence[Call]
    results: Sequence[Result]
    children: Sequence[StoredTrajectory]


def turns(stored: StoredTrajectory, members: Sequence[StoredTrajectory], start: int = 0) -> list[Turn]:
    """`PAGE` segments from ``start`` on; one without action tokens is the final observation.

    ``members``: all sub-agents of the episode, whoever started them.
    """
    before, found = stored.segments[start - 1].context if 0 < start <= len(stored.segments) else 0, []
    for segment in stored.segments[start : start + PAGE]:
        note = None if segment.context == before else f"context {segment.context}: {rewriting(segment)}"
        before = segment.context
        children = [c for c in members if (c.parent, c.parent_segment) == (stored.id, segment.index)]
        found.append(_turn(segment, note, children))
    return found


def _turn(segment: Segment, note: str | None, children: Sequence[StoredTrajectory]) -> Turn:
    thought = answer_start(segment.action_text, opened=opens(segment.observation_text))
    return Turn(
        index=segment.index,
        note=note,
        observation=shown(segment.observation_text),
        n_obs=segment.n_obs,
        reasoning=shown(segment.action_text[:thought]) if thought else None,
        answer=shown(segment.action_text[thought:]),
        n_act=segment.n_act,
        versions=versions_of([segment]),
        finish_reason=segment.finish_reason.value if segment.finish_reason else None,
        reward=segment.reward,
        calls=[Call(call.name, shown(_arguments(call)), call.error) for call in segment.tool_calls],
        results=[
            Result(r.name, shown(r.text), r.is_error, r.duration_s, len(exact_bytes(segment, f"result-{i}")), f"result-{i}")
            for i, r in enumerate(segment.tool_results)
        ],
        children=children,
    )


def exact_bytes(segment: Segment, part: str) -> bytes:
    """What is stored of ``observation``, ``action`` or ``result-N``, to the byte. `KeyError` for any other name."""
    results = {f"result-{i}": (r.raw, r.text) for i, r in enumerate(segment.tool_results)}
    raw, text = {
        "observation": (None, segment.observation_text), "action": (segment.action_raw, segment.action_text), **results,
    }[part]  # fmt: skip
    return text.encode("utf-8", "surrogatepass") if raw is None else raw


def rewriting(segment: Segment) -> str:
    """What became of the history before a segment that begins a new context."""
    if segment.compacted is None:
        return "the history was rewritten, what follows begins with a whole prompt"
    return f"the environment put {len(segment.compacted)} messages in the place of the history"


def versions_of(segments: Sequence[Segment]) -> str:
    """The policy versions of their action tokens: one, or the first and the last."""
    found = [int(version) for s in segments if s.n_act for version in (s.versions.min(), s.versions.max())]
    return "" if not found else str(found[0]) if min(found) == max(found) else f"{min(found)}-{max(found)}"


def _arguments(call: ToolCall) -> str:
    """One argument a line; a text as it is, so that code can be read."""
    if call.arguments is None:
        return ""
    lines = []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)
