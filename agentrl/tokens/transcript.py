"""The append-only token record of one trajectory.

Invariants, each a test of this name:
- ``token_truth``: ids are only ever appended, never re-encoded; the ids of a request are the ids stored so far.
- ``equal_lengths``: ids, mask, log-probs and versions have one length after every append; a bad append changes nothing.
- ``trainable_is_sampled``: the mask is 1 exactly on ids that an engine sampled, the stop token included.
- ``version_truth``: versions of sampled ids never decrease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl.errors import BrokenDistribution, TokenDrift, WrongAnswer
from agentrl.types import FinishReason, Json, Segment

NO_VERSION = -1
"""Version of an id that no policy sampled."""


class SampledTokens(Protocol):
    """What an engine's answer is to a transcript: arrays of one length n >= 0."""

    @property
    def token_ids(self) -> np.ndarray: ...
    @property
    def logprobs(self) -> np.ndarray: ...
    @property
    def versions(self) -> np.ndarray: ...
    @property
    def finish_reason(self) -> FinishReason: ...


class Transcript:
    """Observations and actions of one trajectory in the order in which the engine saw and sampled them."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._segments: list[Segment] = []
        self._segment_start = 0
        self._context = 0
        self._context_start = 0
        self._compacted: tuple[Mapping[str, Json], ...] | None = None

    @property
    def token_ids(self) -> list[int]:
        """All ids of the current context: the prompt of the next request."""
        return self._ids[self._context_start :]

    @property
    def n_context(self) -> int:
        """Number of ids in the current context."""
        return len(self._ids) - self._context_start

    @property
    def n_tokens(self) -> int:
        """Number of ids in all contexts."""
        return len(self._ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The closed segments, in order."""
        return tuple(self._segments)

    @property
    def pending(self) -> np.ndarray:
        """int32: the ids of the observation that is open."""
        return self._pending()

    def append_observation(self, ids: Sequence[int]) -> None:
        """Add ids that the environment or the template wrote; they belong to the next segment."""
        self._ids.extend(map(int, ids))

    def append_action(self, sampled: SampledTokens) -> Segment:
        """Add what the engine sampled after the ids so far and return the segment it closes.

        Raises as `check` does; the transcript is unchanged then.
        """
        ids, logprobs, versions = self.check(sampled)
        segment = Segment(
            index=len(self._segments),
            observation=self._pending(),
            action=ids,
            logprobs=logprobs,
            versions=versions,
            context=self._context,
            compacted=self._compacted,
            finish_reason=sampled.finish_reason,
        )
        self._ids.extend(ids.tolist())
        return self._close(segment)

    def close(self) -> Segment | None:
        """The last segment, without action, when observation ids are left over; None when there are none."""
        if self._segment_start == len(self._ids):
            return None
        empty = np.empty(0, dtype=np.int32)
        return self._close(
            Segment(
                index=len(self._segments),
                observation=self._pending(),
                action=empty,
                logprobs=np.empty(0, dtype=np.float32),
                versions=empty,
                context=self._context,
                compacted=self._compacted,
            )
        )

    def start_context(self, compacted: tuple[Mapping[str, Json], ...] | None = None) -> None:
        """Begin a new context: the next observation is a whole prompt.

        ``compacted``: the messages that it writes, where the environment chose them; they are kept with the next segment.
        """
        if self._segment_start != len(self._ids):
            raise TokenDrift(f"segment {len(self._segments)}: close it before a new context; it has ids without an action")
        self._context += 1
        self._context_start = len(self._ids)
        self._compacted = compacted

    def mask(self) -> np.ndarray:
        """uint8 [n_tokens], 1 on sampled ids. Ids of an unclosed observation are included, as 0."""
        return self._spread([np.ones(s.n_act, dtype=np.uint8) for s in self._segments], fill=0, dtype=np.uint8)

    def logprobs(self) -> np.ndarray:
        """float32 [n_tokens], 0 where the mask is 0."""
        return self._spread([s.logprobs for s in self._segments], fill=0.0, dtype=np.float32)

    def versions(self) -> np.ndarray:
        """int32 [n_tokens], `NO_VERSION` where the mask is 0."""
        return self._spread([s.versions for s in self._segments], fill=NO_VERSION, dtype=np.int32)

    def check(self, sampled: SampledTokens) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of ids, log-probs and versions, if they can be the next action.

        `WrongAnswer` when they differ in length, when the versions decrease, or when a turn that nobody aborted is empty;
        `BrokenDistribution` when a log-prob is not finite.
        """
        ids = np.array(sampled.token_ids, dtype=np.int32)
        logprobs = np.array(sampled.logprobs, dtype=np.float32)
        versions = np.array(sampled.versions, dtype=np.int32)
        where = f"segment {len(self._segments)}"
        if not ids.shape == logprobs.shape == versions.shape or ids.ndim != 1:
            raise WrongAnswer(
                f"{where}: ids {ids.shape}, log-probs {logprobs.shape} and versions {versions.shape} differ in length"
            )
        if not len(ids) and sampled.finish_reason is not FinishReason.ABORT:
            raise WrongAnswer(f"{where}: the engine says {sampled.finish_reason.value}, but gave no token")
        if not np.isfinite(logprobs).all():
            raise BrokenDistribution(
                f"{where}: the engine returned a log-prob that is not finite at token {int(np.isfinite(logprobs).argmin())}"
            )
        earlier = next((int(s.versions[-1]) for s in reversed(self._segments) if s.n_act), NO_VERSION)
        if len(versions) and (versions[0] < earlier or (np.diff(versions) < 0).any()):
            raise WrongAnswer(f"{where}: versions {versions.tolist()} decrease (the turn before ended at {earlier})")
        return ids, logprobs, versions

    def _pending(self) -> np.ndarray:
        return np.array(self._ids[self._segment_start :], dtype=np.int32)

    def _close(self, segment: Segment) -> Segment:
        self._segments.append(segment)
        self._segment_start = len(self._ids)
        self._compacted = None
        return segment

    def _spread(self, actions: list[np.ndarray], *, fill: float, dtype: type) -> np.ndarray:
        out: np.ndarray = np.full(len(self._ids), fill, dtype=dtype)
        at = 0
        for segment, values in zip(self._segments, actions, strict=True):
            at += segment.n_obs
            out[at : at + segment.n_act] = values
            at += segment.n_act
        return out
