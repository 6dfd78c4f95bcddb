"""From stored trajectories to what a step trains on. A bad trajectory is named with its reason; it never spoils the batch.

Arrays of a trajectory hold its action tokens only, in order, across all its contexts. Observation tokens live in the contexts,
where they are fed to the model and asked for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithm.turns import unit_ids
from agentrl.errors import UsageError
from agentrl.types import DropReason, Outcome, Segment, StoredTrajectory, Termination

MAX_LOGPROB = 1e-6
"""A recorded log-prob above it can't be one: rounding explains less."""


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens as the model saw them: ``tokens`` int64 [T], ``positions`` int64 [m] of the action tokens (all >= 1)."""

    tokens: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class BatchTrajectory:
    """One trajectory. Tensors [n] over its action tokens.

    ``turn_id`` int64, 0..K-1; ``unit_id`` int64: the unit of credit, a turn unless the environment marked others; ``anchors``:
    per unit, a hash of what it answered: the observation, and what its own turn said before it; ``loss_mask`` bool;
    ``logp_rollout`` float32, as sampled at ``temperature``; ``token_version`` int64; ``rewards`` float32: rewards of single
    turns, each on its turn's last action token, without the final ``reward``; ``seams`` bool: last action before a rewritten
    context.
    """

    id: UUID
    group: UUID | None
    reward: float | None
    termination: Termination
    outcome: Outcome
    temperature: float
    contexts: tuple[Context, ...]
    turn_id: Tensor
    unit_id: Tensor
    anchors: tuple[bytes, ...]
    loss_mask: Tensor
    logp_rollout: Tensor
    token_version: Tensor
    rewards: Tensor
    seams: Tensor
    parent: UUID | None = None
    """The trajectory that started it as a sub-agent, in its turn ``parent_turn``."""
    parent_turn: int | None = None
    inherits: bool = False
    """Whether ``reward`` and ``outcome`` are its parent's."""

    @property
    def n_actions(self) -> int:
        return len(self.turn_id)

    @property
    def n_turns(self) -> int:
        return int(self.turn_id[-1]) + 1

    @property
    def n_units(self) -> int:
        return int(self.unit_id[-1]) + 1


@dataclass(frozen=True, slots=True)
class Batch:
    """What can be trained on, and what was refused, why."""

    trajectories: list[BatchTrajectory]
    rejected: list[tuple[UUID, DropReason]]

    @property
    def n_actions(self) -> int:
        return sum(t.n_actions for t in self.trajectories)


def build_batch(trajectories: Sequence[StoredTrajectory], *, max_context: int) -> Batch:
    """Validate and convert, sub-agents like any other trajectory; contexts longer than ``max_context`` tokens are overlong.

    Raises `UsageError` only for what no trajectory of the run can change: log-probs of another kind than the loss needs.
    """
    batch = Batch([], [])
    seen: set[UUID] = set()
    for stored in trajectories:
        _check_logprob_kind(stored)
        reason = DropReason.DUPLICATE if stored.id in seen else _fault(stored, max_context)
        seen.add(stored.id)
        if reason is None:
            batch.trajectories.append(_convert(stored))
        else:
            batch.rejected.append((stored.id, reason))
    return batch


def _check_logprob_kind(stored: StoredTrajectory) -> None:
    sampling = stored.lineage.sampling
    exact = sampling.temperature > 0 and sampling.top_p == 1 and sampling.top_k == 0
    if not exact or (stored.lineage.logprob_kind != "sampled" and sampling.temperature != 1):
        raise UsageError(
            f"trajectory {stored.id}: log-probs of kind {stored.lineage.logprob_kind!r} sampled with {sampling} can't be "
            "recomputed by the trainer: sample with temperature > 0, top_p = 1, top_k = 0 and kind sampled"
        )


def _fault(stored: StoredTrajectory, max_context: int) -> DropReason | None:
    if stored.outcome is Outcome.INFRASTRUCTURE or stored.termination.is_error():
        return DropReason.INFRASTRUCTURE
    if stored.outcome is Outcome.GRADED and stored.reward is None:
        return DropReason.UNGRADED
    acting = [s for s in stored.segments if s.n_act]
    if not acting:
        return DropReason.ZERO_ACTION
    if any(_lengths_differ(s) for s in acting) or _starts_with_action(stored.segments):
        return DropReason.TOKEN_DRIFT
    if not _finite(stored, acting):
        return DropReason.NON_FINITE
    versions = np.concatenate([s.versions for s in acting])
    if versions.min() < 0 or (np.diff(versions) < 0).any():
        return DropReason.BAD_VERSIONS
    if all(s.loss_mask is not None and not s.loss_mask.any() for s in acting):
        return DropReason.EMPTY_AFTER_MASK
    if any(sum(s.n_obs + s.n_act for s in context) > max_context for context in _by_context(stored.segments)):
        return DropReason.OVERLONG
    return None


def _lengths_differ(segment: Segment) -> bool:
    arrays = (segment.logprobs, segment.versions, segment.loss_mask, segment.unit_starts)
    return any(array is not None and len(array) != segment.n_act for array in arrays)


def _starts_with_action(segments: Sequence[Segment]) -> bool:
    # The first token of a context has no state before it, so nothing can have sampled it.
    return any(context[0].n_obs == 0 for context in _by_context(segments))


def _finite(stored: StoredTrajectory, acting: Sequence[Segment]) -> bool:
    logprobs = np.concatenate([s.logprobs for s in acting])
    rewards = [s.reward for s in stored.segments if s.reward is not None]
    rewards += [stored.reward.value] if stored.reward is not None else []
    return bool(np.isfinite(logprobs).all() and (logprobs <= MAX_LOGPROB).all() and np.isfinite(rewards).all())


def _by_context(segments: Sequence[Segment]) -> list[list[Segment]]:
    contexts: list[list[Segment]] = []
    for segment in segments:
        if not contexts or contexts[-1][-1].context != segment.context:
            contexts.append([])
        contexts[-1].append(segment)
    return contexts


def _convert(stored: StoredTrajectory) -> BatchTrajectory:
    acting = [s for s in stored.segments if s.n_act]
    contexts = [_context(segments) for segments in _by_context(stored.segments)]
    ends = np.cumsum([len(context.positions) for context in contexts])
    seams = torch.zeros(int(ends[-1]), dtype=torch.bool)
    seams[[end - 1 for end in ends[:-1] if 0 < end < ends[-1]]] = True
    turn_id = torch.repeat_interleave(torch.arange(len(acting)), torch.tensor([s.n_act for s in acting]))
    return BatchTrajectory(
        id=stored.id,
        group=stored.group,
        reward=None if stored.reward is None else stored.reward.value,
        termination=stored.termination,
        outcome=stored.outcome,
        temperature=stored.lineage.sampling.temperature,
        contexts=tuple(contexts),
        turn_id=turn_id,
        unit_id=unit_ids(turn_id, _unit_starts(acting)),
        anchors=_anchors(stored.segments),
        loss_mask=torch.cat([_loss_mask(s) for s in acting]),
        logp_rollout=torch.cat([torch.from_numpy(s.logprobs.astype(np.float32)) for s in acting]),
        token_version=torch.cat([torch.from_numpy(s.versions.astype(np.int64)) for s in acting]),
        rewards=_turn_rewards(stored.segments),
        seams=seams,
        parent=stored.parent,
        parent_turn=stored.parent_segment,
        inherits=stored.inherits,
    )


def _context(segments: Sequence[Segment]) -> Context:
    tokens, is_action = [], []
    for segment in segments:
        tokens += [segment.observation, segment.action]
        is_action += [np.zeros(segment.n_obs, dtype=bool), np.ones(segment.n_act, dtype=bool)]
    return Context(
        tokens=torch.from_numpy(np.concatenate(tokens).astype(np.int64)),
        positions=torch.from_numpy(np.concatenate(is_action).nonzero()[0]),
    )


def _unit_starts(acting: Sequence[Segment]) -> Tensor | None:
    """bool [n]; None when no turn of the trajectory is marked. An unmarked turn among marked ones begins a unit."""
    if all(segment.unit_starts is None for segment in acting):
        return None
    return torch.cat([torch.from_numpy(_own_starts(segment)) for segment in acting])


def _own_starts(segment: Segment) -> np.ndarray:
    if segment.unit_starts is not None:
        return segment.unit_starts.astype(bool)
    starts = np.zeros(segment.n_act, dtype=bool)
    starts[:1] = True
    return starts


def _anchors(segments: Sequence[Segment]) -> tuple[bytes, ...]:
    """Per unit of credit, a hash of all that was observed since the turn before, and of what its turn said before it."""
    anchors: list[bytes] = []
    seen = hashlib.sha256()
    for segment in segments:
        seen.update(segment.observation.astype("<i4").tobytes())
        if not segment.n_act:
            continue
        starts = _own_starts(segment)
        starts[0] |= not anchors
        for place in np.flatnonzero(starts):
            state = seen.copy()
            state.update(segment.action[:place].astype("<i4").tobytes())
            anchors.append(state.digest())
        seen = hashlib.sha256()
    return tuple(anchors)


def _loss_mask(segment: Segment) -> Tensor:
    if segment.loss_mask is None:
        return torch.ones(segment.n_act, dtype=torch.bool)
    return torch.from_numpy(segment.loss_mask.astype(bool))


def _turn_rewards(segments: Sequence[Segment]) -> Tensor:
    # A reward of a segment without an action belongs to the turn before it: that turn's action earned it.
    rewards: list[np.ndarray] = []
    early = 0.0
    for segment in segments:
        reward = segment.reward or 0.0
        if segment.n_act:
            rewards.append(np.zeros(segment.n_act, dtype=np.float32))
            rewards[-1][-1] = reward + early
            early = 0.0
        elif rewards:
            rewards[-1][-1] += reward
        else:
            early += reward
    return torch.from_numpy(np.concatenate(rewards))
