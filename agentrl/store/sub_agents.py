"""Sub-agents as parts of an episode: whose verdict counts for them, and with whom they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

from agentrl.store.codec import CONTENT, segment_parameters
from agentrl.types import StoredTrajectory, SubAgent


def adopt(root: StoredTrajectory, sub_agents: Sequence[StoredTrajectory]) -> StoredTrajectory:
    """The episode with its sub-agents, given in the order of their seats.

    One without a verdict of its own has its parent's. One with a verdict of its own is of a group with those of the same
    environment in the episode, or in all episodes of the episode's group.
    """
    known = {root.id: root}
    for child in sub_agents:
        if child.inherits:
            assert child.parent is not None
            elder = known[child.parent]
            child = replace(child, outcome=elder.outcome, reward=elder.reward)
        else:
            child = replace(child, group=uuid5(root.group or root.id, child.environment))
        known[child.id] = child
    del known[root.id]
    return replace(root, sub_agents=tuple(known.values()))


def body(child: SubAgent) -> tuple[Any, ...]:
    """What tells two deliveries of a sub-agent apart."""
    return _body(child.trajectory, child.parent, child.parent_segment, child.seat, child.segments)


def stored_body(child: StoredTrajectory) -> tuple[Any, ...]:
    """The same of one that is stored."""
    return _body(child.id, child.parent, child.parent_segment, child.seat, child.segments)


def _body(
    trajectory: UUID, parent: UUID | None, parent_segment: int | None, seat: int, segments: Sequence[Any]
) -> tuple[Any, ...]:
    return trajectory, parent, parent_segment, seat, tuple(segment_parameters(segment)[CONTENT] for segment in segments)
