"""Tokens over the lag bound are left out of the loss: what ``staleness.mode=segment_mask`` does to a claim.

Invariants
- lag_of_what_trains: no token in the loss is over the bound, whatever else its trajectory holds.
- masked_only_in_the_loss: credit, values and observations still see every token; a token that something else masked stays so.
- ledger_truth: what was masked is reported by trajectory, version and number of tokens, for the ledger and for a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
from torch import Tensor

from agentrl.store.contract import Claim, ClaimedItem, Masked
from agentrl.trainer.batch import Batch
from agentrl.types import Segment, StoredTrajectory


def mask_stale(claim: Claim, lag_of: Callable[[int], int], bound: int) -> Claim:
    """The claim with every action token of a lag over ``bound`` out of the loss.

    ``lag_of``: policy updates between a version and the weights that are trained.
    """

    def without(stored: StoredTrajectory) -> StoredTrajectory:
        versions = {int(v) for member in stored.family for segment in member.segments for v in np.unique(segment.versions)}
        return mask_versions(stored, {version for version in versions if lag_of(version) > bound})

    return replace(claim, items=[_of_item(item, without) for item in claim.items])


def masked_in(batch: Batch, token_lags: Sequence[Tensor], bound: int) -> list[Masked]:
    """What `mask_stale` left out of a batch, by episode, for the ledger; ``token_lags``: per trajectory int64 [n].

    Sub-agents count with their episode, which comes before them.
    """
    episodes: dict[UUID, UUID] = {}
    stale: dict[UUID, list[int]] = {}
    for trajectory, lags in zip(batch.trajectories, token_lags, strict=True):
        parent = trajectory.parent
        episode = episodes[trajectory.id] = trajectory.id if parent is None else episodes.get(parent, parent)
        found = trajectory.token_version[lags > bound].tolist()
        if found:
            stale.setdefault(episode, []).extend(found)
    return [Masked(episode, sorted(set(versions)), len(versions)) for episode, versions in stale.items()]


def mask_versions(stored: StoredTrajectory, versions: Collection[int]) -> StoredTrajectory:
    """The same trajectory, and its sub-agents, with the action tokens of ``versions`` out of the loss."""
    if not versions:
        return stored
    segments = [_without(segment, versions) for segment in stored.segments]
    return replace(stored, segments=segments, sub_agents=[mask_versions(child, versions) for child in stored.sub_agents])


def _of_item(item: ClaimedItem, without: Callable[[StoredTrajectory], StoredTrajectory]) -> ClaimedItem:
    return replace(item, trajectories=[without(stored) for stored in item.trajectories])


def _without(segment: Segment, versions: Collection[int]) -> Segment:
    stale = np.isin(segment.versions, list(versions))
    if not stale.any():
        return segment
    before = np.ones(segment.n_act, np.uint8) if segment.loss_mask is None else segment.loss_mask
    return replace(segment, loss_mask=np.where(stale, 0, before).astype(np.uint8))
