"""Demonstrations: a scripted policy plays an environment's tasks, with the same turns, sandboxes and grading as a model."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.environment.base import Environment, Policy, checked_tasks
from agentrl.environment.boundary import named_faults
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.episode import Episode
from agentrl.environment.grading import grade, is_gradable
from agentrl.environment.sub_agents import offer, own_verdict
from agentrl.environment.turn import begin, take_turn
from agentrl.errors import EnvironmentFault
from agentrl.tokens.messages import Message
from agentrl.types import Reward, Task, Termination
from sandboxes.contract import SandboxDied, SandboxPool, SandboxUnavailable
from sandboxes.lazy import SandboxQueue

REPEATS = 2
"""How often an episode is played again whose sandbox broke."""

Entries = tuple[Message | str, ...]
"""A `Message` is prompt or observation, a str is an assistant's turn."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One played episode. ``contexts``: what was read and said, from each prompt on; one unless the history was compacted."""

    environment: Environment = field(compare=False)
    task: Task
    contexts: tuple[Entries, ...]
    termination: Termination
    reward: Reward | None
    sub_agents: tuple[Demonstration, ...] = ()

    @property
    def entries(self) -> Entries:
        """Of all contexts, in order."""
        return tuple(itertools.chain.from_iterable(self.contexts))


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that ended and was not graded yet. ``turn_seconds``: what the environment took to answer each turn."""

    episode: Episode
    contexts: tuple[Entries, ...]
    termination: Termination
    turn_seconds: tuple[float, ...]
    sub_agents: tuple[Demonstration, ...] = ()


async def play(
    environment: Environment, task: Task, policy: Policy, pool: SandboxPool | None = None, *, seed: int = 0
) -> Demonstration:
    """Play one episode and grade it in a sandbox taken after the episode's own was given back.

    ``pool`` may be None for an environment without a sandbox.
    """
    return await _play(environment, task, policy, queue_for(pool), seed)


async def _play(environment: Environment, task: Task, policy: Policy, queue: SandboxQueue | None, seed: int) -> Demonstration:
    played = await act(environment, task, policy, queue, seed)
    reward = await verdict(environment, played, queue)
    return Demonstration(environment, task, played.contexts, played.termination, reward, played.sub_agents)


async def act(environment: Environment, task: Task, policy: Policy, queue: SandboxQueue | None, seed: int = 0) -> Played:
    """Play one episode up to its end; its sandboxes are given back."""
    async with boxes_of(environment, task, queue) as boxes:
        episode, _ = await begin(environment, task, seed=seed, sandbox=boxes.main, sandboxes=boxes.others)
        return await _talk(environment, episode, policy)


async def _talk(environment: Environment, episode: Episode, policy: Policy) -> Played:
    contexts: list[list[Message | str]] = [list(episode.messages)]
    seconds: list[float] = []
    cast = _Cast()
    offer(environment, episode, cast)
    ended: Termination | None = None
    while ended is None:
        with named_faults(environment.name, episode.task.id, "demonstrator"):
            text = policy(episode)
            if not isinstance(text, str):
                raise TypeError(f"a policy says a text, not {text!r:.100}")
        outcome = await take_turn(environment, episode, text, truncated=False)
        ended = outcome.ended
        contexts[-1].append(text)
        seconds.append(outcome.tool_s)
        if outcome.compacted is not None:
            contexts.append(list(outcome.compacted))
        elif ended is None:
            contexts[-1].extend(outcome.messages)
    return Played(episode, tuple(map(tuple, contexts)), ended, tuple(seconds), tuple(cast.shown))


class _Cast:
    """Sub-agents of a demonstration: each plays the demonstrator of its own environment, or its gold solution."""

    def __init__(self) -> None:
        self.shown: list[Demonstration] = []
        self._started = 0

    def number(self) -> int:
        self._started += 1
        return self._started - 1

    async def play(self, number: int, environment: Environment, episode: Episode) -> None:
        played = await _talk(environment, episode, _scripted(environment, episode))
        reward = await own_verdict(environment, episode)
        self.shown.append(
            Demonstration(environment, episode.task, played.contexts, played.termination, reward, played.sub_agents)
        )


def _scripted(environment: Environment, episode: Episode) -> Policy:
    with named_faults(environment.name, episode.task.id, "demonstrator"):
        if environment.can_demonstrate:
            return environment.demonstrator(random.Random(episode.seed), episode.task)
        if environment.has_gold:
            turns = list(environment.gold(episode.task))
            return lambda running: turns[running.n_turns] if running.n_turns < len(turns) else ""
    raise EnvironmentFault(
        f"environment {environment.name!r} was started as a sub-agent and can't be played without a model: "
        "define demonstrator(rng, task) or gold(task)"
    )


async def verdict(environment: Environment, played: Played, queue: SandboxQueue | None) -> Reward | None:
    """Grade a played episode in clean sandboxes; None when an end like its own gets no verdict."""
    if not is_gradable(environment, played.termination):
        return None
    async with boxes_of(environment, played.episode.task, queue, grading=True) as boxes:
        return await grade(environment, played.episode, boxes.main, boxes.others)


async def collect(
    environment: Environment,
    seed: int,
    n: int,
    pool: SandboxPool | None = None,
    concurrency: int = 4,
    on_progress: Callable[[int], None] | None = None,
) -> list[Demonstration]:
    """``n`` demonstrations of training tasks, in the order of the tasks; the same ones for the same ``seed``.

    ``on_progress(episodes done)`` is called after each; it may raise to stop. An episode whose sandbox breaks is played again
    from its start, `REPEATS` times at the most, where `Environment.is_repeatable` allows that.
    """
    tasks = checked_tasks(environment, "train", seed, n)
    queue, slots = queue_for(pool), asyncio.Semaphore(concurrency)
    done = itertools.count(1)

    async def played(index: int, task: Task, repeats: int) -> Demonstration:
        with named_faults(environment.name, task.id, "demonstrator"):
            policy = environment.demonstrator(random.Random(f"{seed}/{index}"), task)
        try:
            return await _play(environment, task, policy, queue, index)
        except (SandboxDied, SandboxUnavailable):
            if repeats == 0:
                raise
        return await played(index, task, repeats - 1)

    async def one(index: int, task: Task) -> Demonstration:
        async with slots:
            demonstration = await played(index, task, REPEATS if environment.is_repeatable else 0)
            if on_progress is not None:
                on_progress(next(done))
            return demonstration

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(index, task)) for index, task in enumerate(tasks)]
    return [task.result() for task in running]
