"""The turns of a trajectory as a page shows them: what was observed, thought, answered, called and returned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.tokens.reasoning import answer_start, opens
from agentrl.types import Segment, StoredTrajectory, ToolCall
from agentrl.view.shown import Shown, shown


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


def turns(stored: StoredTrajectory) -> list[Turn]:
    """All segments in order; one without action tokens is the final observation."""
    context, found = 0, []
    for segment in stored.segments:
        note = None
        if segment.context != context:
            context = segment.context
            note = f"context {context}: {_rewriting(segment)}"
        found.append(_turn(stored, segment, note))
    return found


def _turn(stored: StoredTrajectory, segment: Segment, note: str | None) -> Turn:
    thought = answer_start(segment.action_text, opened=opens(segment.observation_text))
    children = [c for c in stored.sub_agents if (c.parent, c.parent_segment) == (stored.id, segment.index)]
    return Turn(
        index=segment.index,
        note=note,
        observation=shown(segment.observation_text),
        n_obs=segment.n_obs,
        reasoning=shown(segment.action_text[:thought]) if thought else None,
        answer=shown(segment.action_text[thought:]),
        n_act=segment.n_act,
        versions=_span(segment),
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


def _rewriting(segment: Segment) -> str:
    if segment.compacted is None:
        return "the history was rewritten, what follows begins with a whole prompt"
    return f"the environment put {len(segment.compacted)} messages in the place of the history"


def _span(segment: Segment) -> str:
    if not segment.n_act:
        return ""
    low, high = int(segment.versions.min()), int(segment.versions.max())
    return str(low) if low == high else f"{low}-{high}"


def _arguments(call: ToolCall) -> str:
    """One argument a line; a text as it is, so that code can be read."""
    if call.arguments is None:
        return ""
    lines = []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)
