"""Sub-agents of one episode while it runs in a worker.

Invariants
- part_of_the_episode: a sub-agent runs in its episode's worker, under its lease and fence; nothing else opens or completes it.
- stored_with_its_turn: what a sub-agent did is stored by the write of the episode's turn that started it, or not at all.
- one_verdict: a sub-agent's verdict is its own class's, or what the reward code of its episode set for it, or its parent's.
- played_once: an episode that another worker continues plays its stored sub-agents again from what is stored, like its turns.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

from agentrl.environment.base import Environment
from agentrl.environment.episode import Episode
from agentrl.environment.grading import checked_reward
from agentrl.environment.sub_agents import own_verdict
from agentrl.errors import EngineError, EnvironmentFault, TokenDrift, UsageError
from agentrl.types import EpisodeEnd, Opened, Outcome, Reward, Segment, StoredTrajectory, SubAgent

Write = Callable[[Segment], Awaitable[None]]


class Converse(Protocol):
    """Has a begun episode played by the policy."""

    async def __call__(
        self,
        opened: Opened,
        environment: Environment,
        episode: Episode,
        family: Family,
        *,
        stored: Sequence[Segment],
        write: Write,
        seconds: float,
    ) -> EpisodeEnd: ...


@dataclass
class Family:
    """All sub-agents of the episode ``opened``, their own ones included. ``stored``: those that are stored, by number."""

    opened: Opened
    converse: Converse
    stored: dict[int, StoredTrajectory] = field(default_factory=dict)
    started: int = 0
    played: dict[UUID, tuple[Environment, Episode]] = field(default_factory=dict)
    _ended: list[SubAgent] = field(default_factory=list)

    def add(self, child: SubAgent) -> None:
        self._ended.append(child)

    def take(self) -> tuple[SubAgent, ...]:
        """Those that ended since the last call, parents before their own."""
        ended, self._ended = self._ended, []
        return tuple(sorted(ended, key=lambda child: child.seat))

    def verdicts(self, environment: Environment) -> dict[UUID, Reward]:
        """What the reward code of ``environment``, the episode's own, set for its sub-agents."""
        found: dict[UUID, Reward] = {}
        for trajectory, (own, episode) in self.played.items():
            if episode.verdict is None:
                continue
            if own.has_reward:
                raise EnvironmentFault(
                    f"environment {environment.name!r} set the verdict of sub-agent {episode.task.id!r}, but {own.name!r} "
                    "defines reward: keep one of the two"
                )
            found[trajectory] = checked_reward(episode.verdict, environment, episode.task.id)
        return found


@dataclass
class Starter:
    """Plays the sub-agents that one member of the family starts; ``left``: seconds that it has itself."""

    family: Family
    parent: UUID
    episode: Episode
    left: Callable[[], float]

    def number(self) -> int:
        self.family.started += 1
        return self.family.started - 1

    async def play(self, number: int, environment: Environment, episode: Episode) -> None:
        began = time.monotonic()
        known = self.family.stored.get(number)
        opened = replace(
            self.family.opened, trajectory=known.id if known else _new_id(), task=episode.task, seed=episode.seed, n_segments=0
        )
        self.family.played[opened.trajectory] = environment, episode
        segments: list[Segment] = []
        ending = await self._converse(opened, environment, episode, known, segments)
        where = f"sub-agent {environment.name!r} of task {self.episode.task.id!r}"
        if ending.outcome is Outcome.INFRASTRUCTURE:
            raise EngineError(f"{where}: its generation was aborted")
        reward = await own_verdict(environment, episode)
        if known is not None:
            if (ending.n_segments, ending.termination) != (len(known.segments), known.termination):
                raise TokenDrift(f"{where}: played again from what is stored, it ended otherwise: it is not deterministic")
            return
        self.family.add(
            SubAgent(
                trajectory=opened.trajectory,
                parent=self.parent,
                parent_segment=self.episode.n_turns,
                seat=number,
                task=episode.task,
                seed=episode.seed,
                environment=environment.name,
                environment_version=environment.version,
                termination=ending.termination,
                segments=tuple(segments),
                graded=environment.has_reward,
                reward=reward,
                duration_s=time.monotonic() - began,
            )
        )

    async def _converse(
        self,
        opened: Opened,
        environment: Environment,
        episode: Episode,
        known: StoredTrajectory | None,
        segments: list[Segment],
    ) -> EpisodeEnd:
        async def write(segment: Segment) -> None:
            segments.append(segment)

        turns = [segment for segment in known.segments if segment.n_act] if known else []
        seconds = min(environment.max_seconds, self.left())
        try:
            return await self.family.converse(
                opened, environment, episode, self.family, stored=turns, write=write, seconds=seconds
            )
        except UsageError as error:
            raise EnvironmentFault(
                f"sub-agent {environment.name!r} of task {self.episode.task.id!r}: messages that can't be written: {error}"
            ) from error


def _new_id() -> UUID:
    """A UUID of version 7: ids of trajectories sort by time."""
    value = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    return UUID(int=(value & ~(0xF << 76) & ~(0x3 << 62)) | (0x7 << 76) | (0x2 << 62))
