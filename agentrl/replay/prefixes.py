"""Re-rendering: each action's prefix is written again, by the code that wrote it, and compared with the stored ids.

The prompt comes from the environment, tool results from the segments. What an environment answered to a turn without a call is
stored as ids alone: there the template's pieces must be where they belong and what lies between must be plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.environment.base import Environment
from agentrl.environment.step import tool_message
from agentrl.tokens.audit import drift
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.history import History
from agentrl.tokens.messages import Message, Role, read_message
from agentrl.tokens.transcript import Transcript
from agentrl.types import FinishReason, Segment, StoredTrajectory

ANSWERS: tuple[Role, ...] = ("user", "tool", "system")
"""Roles in which an environment may answer a turn without a call."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: FinishReason


def check_prefixes(stored: StoredTrajectory, chat: ChatFormat, environment: Environment, messages: Sequence[Message]) -> int:
    """How many segments were written again and are the same. `TokenDrift` at the first token that differs.

    ``messages``: what the episode started from. Where the environment put others in their place, those are stored.
    """
    history, transcript = History(chat, messages, environment.tool_schemas()), Transcript()
    history.open(transcript)
    for number, segment in enumerate(stored.segments):
        if segment.compacted is not None:
            history.compact(transcript, [read_message(message) for message in segment.compacted])
        elif number:
            history.observe(transcript, _answers(stored, stored.segments[number - 1], segment, chat, environment, history))
        written = _next(transcript, segment)
        if not (number == 0 and chat.writes_the_date):
            _compare(stored, segment, written.observation, "the environment and the template write")
        if written.context != segment.context:
            raise drift(stored, segment, 0, f"context {segment.context}, but its messages need context {written.context} here")
        history.act(segment.action_text, segment.action.tolist())
    return len(stored.segments)


def _next(transcript: Transcript, segment: Segment) -> Segment:
    """The segment that the transcript makes of the stored action."""
    if segment.n_act:
        reason = segment.finish_reason or FinishReason.ABORT
        return transcript.append_action(_Sampled(segment.action, segment.logprobs, segment.versions, reason))
    closed = transcript.close()
    assert closed is not None, "a segment without action closes an observation"
    return closed


def _answers(
    stored: StoredTrajectory,
    turn: Segment,
    after: Segment,
    chat: ChatFormat,
    environment: Environment,
    history: History,
) -> Sequence[Message]:
    if turn.tool_results:
        return [tool_message(environment, result) for result in turn.tool_results]
    observed = after.observation.tolist()
    best: list[int] = []
    for role in ANSWERS:
        blank = [Message(role, "")]
        ids, _ = history.next_ids(blank)
        after_content = history.closing_ids(blank)
        before = ids[: len(ids) - len(after_content)]
        end = len(observed) - len(after_content)
        if end >= len(before) and observed[: len(before)] == before and observed[end:] == after_content:
            content = chat.decode(observed[len(before) : end])
            if chat.encode_content(content) == observed[len(before) : end]:
                return [Message(role, content)]
            raise drift(
                stored, after, len(before), "a content that is no plain text: control tokens or other ids than its text"
            )
        best = max(best, before, key=lambda candidate: _agreement(candidate, observed))
    raise drift(stored, after, _agreement(best, observed), "no message of the environment is written like this")


def _agreement(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    shortest = min(len(left), len(right))
    return next((i for i in range(shortest) if left[i] != right[i]), shortest)


def _compare(stored: StoredTrajectory, segment: Segment, written: np.ndarray, who: str) -> None:
    seen, right = segment.observation.tolist(), written.tolist()
    if seen == right:
        return
    at = _agreement(seen, right)
    rest = right[len(seen) :]
    if at == len(seen) and rest and segment.action[: len(rest)].tolist() == rest:
        raise drift(stored, segment, at, f"{who} id {rest[0]} here, but it is stored as sampled: it would be trained")
    should = f"id {right[at]}" if at < len(right) else "nothing"
    found = f"id {seen[at]}" if at < len(seen) else "nothing"
    raise drift(stored, segment, at, f"{who} {should} here, stored is {found}: the action has another prefix")
