"""A trajectory as lines of text. Model and tool text is data: control characters are shown, never sent to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np

from agentrl.monitor.terminal import visible
from agentrl.tokens.reasoning import answer_start, opens
from agentrl.types import Segment, StoredTrajectory
from agentrl.view.turns import rewriting, versions_of


def trajectory_lines(
    stored: StoredTrajectory, events: Sequence[Mapping[str, Any]], *, tokens: bool, reasoning: bool = False
) -> Iterator[str]:
    """Header, one block a segment, then the events. ``reasoning``: in full, not folded to one line."""
    reward = f"{stored.reward.value:g}" if stored.reward else "none"
    yield f"trajectory {stored.id}  ({stored.purpose.value}, task {visible(stored.task_id)}, attempt {stored.attempt})"
    ending = stored.termination.value if stored.ended else "no end is written"
    yield f"  {ending}, {stored.n_turns} turns, {stored.n_tokens} tokens, reward {reward}"
    if stored.parent is not None:
        yield f"  sub-agent {visible(stored.environment)}, started in turn {stored.parent_segment} of {stored.parent}"
    yield f"  engine {stored.lineage.engine} {stored.lineage.engine_version}, sandbox {stored.lineage.sandbox}"
    if stored.error is not None:
        yield f"  failed: {visible(stored.error)}"
    context = 0
    for segment in stored.segments:
        if segment.context != context:
            context = segment.context
            yield f"  context {context}: {rewriting(segment)}"
        yield from _segment_lines(segment, tokens, reasoning)
        yield from _sub_agent_lines(stored.sub_agents, stored.id, segment.index, "      ")
    yield "  events"
    for event in events:
        yield "    " + "  ".join(f"{value}" for value in event.values() if value is not None)


def _sub_agent_lines(members: Sequence[StoredTrajectory], parent: UUID, turn: int, indent: str) -> Iterator[str]:
    """Those that ``parent`` started in a turn, and below each those that it started itself."""
    for child in members:
        if (child.parent, child.parent_segment) == (parent, turn):
            reward = f"{child.reward.value:g}" if child.reward else "none"
            whose = " of its parent" if child.inherits else ""
            size = f"{child.n_turns} turns, {child.n_tokens} tokens"
            name, ending = visible(child.environment), child.termination.value
            yield f"{indent}sub-agent {child.id}  {name}, {ending}, {size}, reward {reward}{whose}"
            for segment in child.segments:
                yield from _sub_agent_lines(members, child.id, segment.index, indent + "  ")


def _segment_lines(segment: Segment, tokens: bool, reasoning: bool) -> Iterator[str]:
    yield f"  [{segment.index}] observation, {segment.n_obs} tokens"
    yield from _indented(segment.observation_text)
    if segment.n_act:
        reason = segment.finish_reason.value if segment.finish_reason else "?"
        yield f"  [{segment.index}] action, {segment.n_act} tokens, version {versions_of([segment])}, {reason}"
        opened = opens(segment.observation_text)
        yield from _action_lines(segment.action_text, opened, reasoning)
        if segment.unit_starts is not None:
            yield f"      units of credit begin at action tokens {np.flatnonzero(segment.unit_starts).tolist()}"
    if tokens:
        yield f"      observation ids {segment.observation.tolist()}"
        for token, logprob, version in zip(segment.action, segment.logprobs, segment.versions, strict=True):
            yield f"      action id {token:>6}  log-prob {logprob:9.5f}  version {version}"
    for call in segment.tool_calls:
        yield f"      call {visible(call.name)} " + visible(call.error or str(dict(call.arguments or {})))
    for result in segment.tool_results:
        yield f"      result of {visible(result.name)}{' (error)' if result.is_error else ''}, {result.duration_s * 1e3:.1f} ms"


def _action_lines(text: str, opened: bool, reasoning: bool) -> Iterator[str]:
    start = 0 if reasoning else answer_start(text, opened=opened)
    if start:
        thought = text[:start]
        yield f"      | (reasoning: {len(thought)} characters, {thought.count(chr(10)) + 1} lines; --reasoning shows it)"
    yield from _indented(text[start:].lstrip("\n") if start else text)


def _indented(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield "      | " + visible(line)
