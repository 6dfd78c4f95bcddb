"""What a stored trajectory must say by itself, without template, weights or environment.

Invariants, each a test of this name; `TokenDrift` names trajectory, segment and token of the first lie:
- ``equal_lengths``: every action token has its log-prob and its version, and the mask is as long.
- ``sampled_tokens_train``: an action ends where the engine says it ended: with a stop token, and only there, or at a budget.
- ``text_is_the_ids``: texts are the decoded ids, calls are what the text says, and a cut turn called nothing.
- ``end_is_told``: a natural end and each exhausted budget leave different rows behind.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agentrl.errors import TokenDrift
from agentrl.tokens.call_values import Schemas
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import OUTSIDE, FinishReason, Segment, StoredTrajectory, Termination

MAX_LOGPROB = 1e-6
"""A recorded log-prob above it can't be one: rounding explains less."""


def drift(stored: StoredTrajectory, segment: Segment | None, token: int | None, what: str) -> TokenDrift:
    """The error that names a row: ``token`` counts the segment's ids, its observation first."""
    where = f"trajectory {stored.id}"
    where += "" if segment is None else f", segment {segment.index}"
    where += "" if token is None else f", token {token}"
    return TokenDrift(f"{where}: {what}")


def check_trajectory(stored: StoredTrajectory, chat: ChatFormat, schemas: Schemas | None) -> None:
    """All of the module's invariants. ``schemas``: of the environment's tools; None: calls are not read again."""
    _check_order(stored)
    version = -1
    for segment in stored.segments:
        _check_lengths(stored, segment)
        version = _check_versions(stored, segment, version)
        _check_action(stored, segment, chat.stop_token_ids)
        _check_texts(stored, segment, chat)
        if schemas is not None:
            _check_calls(stored, segment, chat, schemas)
    _check_end(stored)


def _check_order(stored: StoredTrajectory) -> None:
    context = -1
    for number, segment in enumerate(stored.segments):
        if segment.index != number:
            raise drift(stored, segment, None, f"segment {number} is missing")
        if segment.context not in (context, context + 1):
            raise drift(stored, segment, None, f"context {segment.context} follows context {context}")
        if segment.context != context and not segment.n_obs:
            raise drift(stored, segment, 0, "a context begins with an action: nothing can have sampled its first token")
        if not segment.n_act and number + 1 < len(stored.segments):
            raise drift(stored, segment, None, "there is no action, and it is not the last segment")
        context = segment.context


def _check_lengths(stored: StoredTrajectory, segment: Segment) -> None:
    arrays = {"log-probs": segment.logprobs, "versions": segment.versions}
    if segment.loss_mask is not None:
        arrays["mask"] = segment.loss_mask
    if segment.unit_starts is not None:
        arrays["unit marks"] = segment.unit_starts
    for name, array in arrays.items():
        if len(array) != segment.n_act:
            raise drift(stored, segment, None, f"{segment.n_act} action tokens, but {len(array)} {name}")
    bad = np.flatnonzero(~(segment.logprobs <= MAX_LOGPROB) | ~np.isfinite(segment.logprobs))
    if len(bad):
        at = int(bad[0])
        raise drift(stored, segment, segment.n_obs + at, f"{segment.logprobs[at]} is no log-prob")


def _check_versions(stored: StoredTrajectory, segment: Segment, earlier: int) -> int:
    for at, version in enumerate(segment.versions.tolist()):
        if version < max(earlier, 0):
            raise drift(stored, segment, segment.n_obs + at, f"version {version} after version {earlier}")
        earlier = version
    return earlier


def _check_action(stored: StoredTrajectory, segment: Segment, stops: Iterable[int]) -> None:
    at_stop = np.flatnonzero(np.isin(segment.action, list(stops)))
    last = segment.n_act - 1
    if len(at_stop) and at_stop[0] < last:
        raise drift(stored, segment, segment.n_obs + int(at_stop[0]), "a stop token inside of a turn")
    stopped = bool(len(at_stop))
    if segment.n_act and stopped != (segment.finish_reason is FinishReason.STOP):
        reason = segment.finish_reason.value if segment.finish_reason else None
        ending = "a stop token" if stopped else "no stop token"
        raise drift(stored, segment, segment.n_obs + last, f"finish reason {reason}, but the turn ends with {ending}")
    if not segment.n_act and segment.finish_reason is not None:
        raise drift(stored, segment, None, f"finish reason {segment.finish_reason.value} without an action")


def _check_texts(stored: StoredTrajectory, segment: Segment, chat: ChatFormat) -> None:
    if chat.decode(segment.observation.tolist()) != segment.observation_text:
        raise drift(stored, segment, None, "the observation's ids decode to another text than the one beside them")
    if chat.decode_action(segment.action.tolist()) != segment.action_text:
        raise drift(stored, segment, segment.n_obs, "the action's ids decode to another text than the one beside them")


def _check_calls(stored: StoredTrajectory, segment: Segment, chat: ChatFormat, schemas: Schemas) -> None:
    if segment.finish_reason is not FinishReason.STOP:
        if segment.tool_calls or segment.tool_results:
            raise drift(stored, segment, None, "a turn that was cut has tool calls: half a call may have been run")
        return
    read = [(call.name, call.arguments) for call in chat.parse(segment.action_text, schemas).calls]
    said = [(call.name, call.arguments) for call in segment.tool_calls]
    if read != said:
        raise drift(stored, segment, segment.n_obs, f"its text makes {len(read)} tool calls, not the {len(said)} stored ones")


def _check_end(stored: StoredTrajectory) -> None:
    """See `agentrl.rollout.episode`: a cut turn has no observation after it, a natural end neither, a spent budget has one."""
    last, ended = stored.segments[-1] if stored.segments else None, stored.termination
    acting = [segment for segment in stored.segments if segment.n_act]
    if last is None or not acting or ended.is_error():
        return
    turn, cut = acting[-1], acting[-1].finish_reason is not FinishReason.STOP
    if ended is Termination.TERMINATED and cut:
        raise drift(stored, turn, None, "the last turn was cut, but the episode is said to have ended by itself")
    if ended is Termination.TERMINATED and not last.n_act:
        raise drift(
            stored, last, None, "the environment answered the last turn, but the episode is said to have ended by itself"
        )
    if ended is Termination.TRUNCATED_TURN_TOKENS and not cut:
        raise drift(stored, turn, None, f"the last turn ended by itself, but the episode is said to be {ended.value}")
    of_time = (Termination.TRUNCATED_TIME, Termination.TRUNCATED_TURN_TIME)
    by_time = ended in of_time and turn.finish_reason is FinishReason.ABORT
    if ended in (Termination.TRUNCATED_TURNS, *of_time) and cut and not by_time:
        raise drift(stored, turn, None, f"the last turn was cut, but the episode is said to be {ended.value}")
    early = next((s for s in acting[:-1] if s.finish_reason is not FinishReason.STOP), None)
    if early is not None and stored.lineage.sandbox != OUTSIDE:  # a client may go on after a turn that was cut
        raise drift(stored, early, None, "a turn that was cut is followed by another one")
