"""Starting a sub-agent from an environment's code, the same for a model's rollout and for a demonstration.

- same_sandboxes: a sub-agent works in the sandboxes of its episode and takes none of its own, so no two agents wait for each
  other's. Its verdict, where it has one of its own, is given without a sandbox.
- uncounted: its time counts against its own ``max_seconds`` and those of its episode, against no limit of a tool or a step.
- one_failure: what breaks a sub-agent breaks its episode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

from agentrl.environment.base import Environment, is_storable
from agentrl.environment.episode import Episode
from agentrl.environment.grading import grade, is_gradable
from agentrl.environment.limits import uncounted
from agentrl.environment.tools import ToolError
from agentrl.environment.turn import begin
from agentrl.errors import EnvironmentFault, UsageError
from agentrl.types import Json, Reward, Task


class Player(Protocol):
    """Whoever says what the sub-agents of one episode say."""

    def number(self) -> int:
        """Called at each start: the number of the sub-agent."""
        ...

    async def play(self, number: int, environment: Environment, episode: Episode) -> None:
        """Play a begun episode to its end."""
        ...


def offer(environment: Environment, episode: Episode, player: Player) -> None:
    """Let ``episode`` start the sub-agents that ``environment`` names."""

    async def start(name: str, payload: Mapping[str, Json]) -> Episode:
        if len(episode.sub_agents) >= environment.max_sub_agents:
            raise ToolError(f"no more than {environment.max_sub_agents} sub-agents may be started")
        child: Episode | None = None
        try:
            own = _declared(environment, episode, name)
            number, task = player.number(), _task(environment, episode, name, payload)
            place = len(episode.sub_agents)
            episode.sub_agents.append(Episode(task))
            with uncounted():
                seed = _seed(episode.seed, place)
                child, _ = await begin(own, task, seed=seed, sandbox=episode.sandbox, sandboxes=episode.sandboxes)
                episode.sub_agents[place] = child
                await player.play(number, own, child)
        except Exception as error:
            episode.failure = episode.failure or error
            raise
        finally:
            if child is not None and not child.retryable:
                episode.retryable = False
        return child

    episode.start = start


async def own_verdict(environment: Environment, episode: Episode) -> Reward | None:
    """The verdict of an ended sub-agent's own environment; None without one, or where such an end gets none."""
    assert episode.ended is not None, "a sub-agent is graded after its end"
    if not environment.has_reward or not is_gradable(environment, episode.ended):
        return None
    return await grade(environment, episode)


def check_sub_agents(environment: Environment) -> None:
    """`UsageError` for sub-agents that can't be told apart, or that declare sandboxes."""
    names = [environment.name]
    waiting = [(environment, name, child) for name, child in environment.sub_agents.items()]
    while waiting:
        owner, name, child = waiting.pop()
        where = f"sub-agent {name!r} of environment {owner.name!r}"
        if not isinstance(child, Environment):
            raise UsageError(f"{where} must be an object of an Environment, not {child!r:.200}")
        if child.name in names:
            raise UsageError(f"{where}: another agent is called {child.name!r}, too; give the class another name")
        if child.sandbox is not None or child.sandboxes:
            raise UsageError(f"{where} declares a sandbox; it works in those of {environment.name!r}: declare it there")
        names.append(child.name)
        waiting += [(child, key, grandchild) for key, grandchild in child.sub_agents.items()]


def _declared(environment: Environment, episode: Episode, name: str) -> Environment:
    if name not in environment.sub_agents:
        known = ", ".join(environment.sub_agents) or "none"
        raise EnvironmentFault(
            f"environment {environment.name!r}, task {episode.task.id!r}: no sub-agent {name!r}; sub-agents: {known}"
        )
    return environment.sub_agents[name]


def _task(environment: Environment, episode: Episode, name: str, payload: Mapping[str, Json]) -> Task:
    task = Task(f"{episode.task.id}/{name}/{len(episode.sub_agents)}", dict(payload), episode.task.split)
    if not is_storable(task):
        raise EnvironmentFault(
            f"environment {environment.name!r}, task {episode.task.id!r}: the payload for sub-agent {name!r} can't be stored: "
            "a payload is a dict of JSON values"
        )
    return task


def _seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{place}".encode()).digest()[:7])
