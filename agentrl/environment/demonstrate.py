"""Demonstrations: a scripted policy plays an environment's tasks, with the same turns, sandboxes and grading as a model."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.environment.base import Environment, Policy, checked_tasks
from agentrl.environment.boundary import named_faults
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.episode import Episode
from agentrl.environment.grading import grade, is_gradable
from agentrl.environment.turn import begin, take_turn
from agentrl.tokens.messages import Message
from agentrl.types import Reward, Task, Termination
from sandboxes.contract import SandboxPool
from sandboxes.lazy import SandboxQueue


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One played episode. ``entries`` in order: a `Message` is prompt or observation, a str is an assistant's turn."""

    task: Task
    entries: tuple[Message | str, ...]
    termination: Termination
    reward: Reward | None


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that ended and was not graded yet. ``turn_seconds``: what the environment took to answer each turn."""

    episode: Episode
    entries: tuple[Message | str, ...]
    termination: Termination
    turn_seconds: tuple[float, ...]


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
    return Demonstration(task, played.entries, played.termination, reward)


async def act(environment: Environment, task: Task, policy: Policy, queue: SandboxQueue | None, seed: int = 0) -> Played:
    """Play one episode up to its end; its sandboxes are given back."""
    async with boxes_of(environment, task, queue) as boxes:
        episode, messages = await begin(environment, task, seed=seed, sandbox=boxes.main, sandboxes=boxes.others)
        entries: list[Message | str] = list(messages)
        seconds: list[float] = []
        ended: Termination | None = None
        while ended is None:
            with named_faults(environment.name, task.id, "demonstrator"):
                text = policy(episode)
            outcome = await take_turn(environment, episode, text, truncated=False)
            ended = outcome.ended
            entries.append(text)
            seconds.append(outcome.tool_s)
            if ended is None:
                entries.extend(outcome.messages)
    return Played(episode, tuple(entries), ended, tuple(seconds))


async def verdict(environment: Environment, played: Played, queue: SandboxQueue | None) -> Reward | None:
    """Grade a played episode in clean sandboxes; None when an end like its own gets no verdict."""
    if not is_gradable(environment, played.termination):
        return None
    async with boxes_of(environment, played.episode.task, queue) as boxes:
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

    ``on_progress(episodes done)`` is called after each; it may raise to stop.
    """
    tasks = checked_tasks(environment, "train", seed, n)
    queue, slots = queue_for(pool), asyncio.Semaphore(concurrency)
    done = itertools.count(1)

    async def one(index: int, task: Task) -> Demonstration:
        async with slots:
            with named_faults(environment.name, task.id, "demonstrator"):
                policy = environment.demonstrator(random.Random(f"{seed}/{index}"), task)
            played = await _play(environment, task, policy, queue, index)
            if on_progress is not None:
                on_progress(next(done))
            return played

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(index, task)) for index, task in enumerate(tasks)]
    return [task.result() for task in running]
