"""Proves an environment without a model: its gold solutions are accepted, doing nothing is not, and nothing gives them away."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.environment.base import Environment, checked_tasks
from agentrl.environment.boxes import distinct_specs, queue_for
from agentrl.environment.validation import episodes, schemas
from agentrl.environment.validation.budgets import within_budgets
from agentrl.environment.validation.check import Check
from agentrl.environment.validation.leaks import gold_texts, leaks_in_prompt, leaks_in_sandboxes
from agentrl.environment.validation.overlap import overlap
from agentrl.errors import AgentRLError, EnvironmentFault
from agentrl.types import Task
from sandboxes.contract import Provider, SandboxError, SandboxSpec
from sandboxes.lazy import SandboxQueue
from sandboxes.pool import Pool

if TYPE_CHECKING:
    from agentrl.tokens.chat_format import ChatFormat

__all__ = ["Check", "validate"]

SPLITS = ("train", "heldout")
SEARCHED = 2
"""Tasks whose sandboxes are searched for gold text, a split: reading a whole image takes seconds."""
POOL_SIZE = 4


@dataclass
class _Run:
    environment: Environment
    tasks: dict[str, list[Task]]
    n: int
    queue: SandboxQueue | None
    roots: tuple[str, ...]
    chat: ChatFormat | None

    @property
    def sample(self) -> list[Task]:
        return [task for tasks in self.tasks.values() for task in tasks[: self.n]]


async def validate(
    environment: Environment,
    provider: Provider | None,
    *,
    n: int = 8,
    repeats: int = 3,
    compared: int = 1000,
    seed: int = 0,
    chat: ChatFormat | None = None,
) -> list[Check]:
    """All checks. ``n``: tasks a split that are played; ``compared``: tasks a split that are compared with the other's.

    ``provider`` may be None for an environment without a sandbox. ``chat`` counts tokens; None: they are bounded from below.
    """
    tasks, drawn = _draw(environment, seed, compared)
    if not drawn.ok:
        return [drawn]
    checks = [drawn, schemas.round_trip(environment), _overlap(tasks)]
    given = copy.deepcopy({split: of_split[:n] for split, of_split in tasks.items()})
    specs = distinct_specs(environment, [task for of_split in tasks.values() for task in of_split[:n]])[:POOL_SIZE]
    size = max(POOL_SIZE, environment.n_sandboxes)
    # Without isolation the root is the host's own: only the episode's folder is its image.
    roots = () if provider is not None and provider.name == "local" else ("/",)
    try:
        async with _queue(provider, specs, size) as queue, _queue(provider, specs, size) as fresh:
            checks += await _played(_Run(environment, tasks, n, queue, roots, chat), fresh, repeats)
    except (AgentRLError, SandboxError) as error:
        checks.append(Check("episodes", False, f"{type(error).__name__}: {error}"))
    for split, before in given.items():
        if changed := [task.id for task, same in zip(tasks[split], before, strict=False) if task != same]:
            why = f"an episode changed the payload of task {changed[0]}; what belongs to an episode goes to episode.state"
            return [Check("tasks", False, why), *checks[1:]]
    return checks


def _draw(environment: Environment, seed: int, compared: int) -> tuple[dict[str, list[Task]], Check]:
    try:
        tasks = {split: checked_tasks(environment, split, seed, compared) for split in SPLITS}
        again = {split: checked_tasks(environment, split, seed, compared) for split in SPLITS}
    except AgentRLError as error:
        return {}, Check("tasks", False, str(error))
    if tasks != again:
        return {}, Check("tasks", False, f"tasks(split, seed={seed}, n={compared}) gave others the second time")
    return tasks, Check("tasks", True, ", ".join(f"{len(of_split)} {split}" for split, of_split in tasks.items()))


def _overlap(tasks: dict[str, list[Task]]) -> Check:
    found = overlap(tasks["train"], tasks["heldout"])
    detail = f"{len(found.exact)} same and {len(found.near)} nearly the same of {len(tasks['heldout'])} held-out tasks"
    pairs = found.exact or found.near
    example = f"; for example {pairs[0][0]} and {pairs[0][1]}" if pairs else ""
    return Check("training and held-out apart", not pairs, detail + example)


async def _played(run: _Run, fresh: SandboxQueue | None, repeats: int) -> list[Check]:
    environment, tasks = run.environment, run.sample
    no_ops = [
        graded
        for text in episodes.NO_OPS
        for graded in await episodes.play_all(environment, tasks, lambda task, text=text: lambda episode: text, run.queue)  # type: ignore[misc]
    ]
    if not environment.has_gold:
        missing = Check("gold accepted", False, "no gold(task) method: nothing shows that the grader accepts a solution")
        return [missing, episodes.no_op_rejected([], no_ops), episodes.time_per_turn(environment, no_ops)]
    try:
        for task in tasks:
            episodes.gold_turns(environment, task)
    except EnvironmentFault as error:
        return [Check("gold accepted", False, str(error)), episodes.no_op_rejected([], no_ops)]
    golds = await episodes.play_all(
        environment, tasks, lambda task: episodes.script(episodes.gold_turns(environment, task)), run.queue
    )
    few = [golds[0], no_ops[0]]
    played = [(gold.task, episodes.gold_turns(environment, gold.task), gold.played) for gold in golds]
    return [
        within_budgets(environment, played, run.chat),
        episodes.gold_accepted(golds, no_ops),
        episodes.no_op_rejected(golds, no_ops),
        await episodes.grader_stable(environment, few, repeats, [run.queue, fresh]),
        await episodes.graded_elsewhere(environment, few, run.queue),
        episodes.time_per_turn(environment, [*golds, *no_ops]),
        *await _leaks(run),
    ]


async def _leaks(run: _Run) -> list[Check]:
    environment, said, kept = run.environment, [], []
    searched = [task for tasks in run.tasks.values() for task in tasks[:SEARCHED]]
    for task in run.sample:
        texts = gold_texts(episodes.gold_turns(environment, task))
        said += [f"task {task.id}: {text!r:.80}" for text in leaks_in_prompt(environment, task, texts)]
        if run.queue is not None and texts and task in searched:
            places = await leaks_in_sandboxes(environment, task, texts, run.queue, run.roots)
            kept += [f"task {task.id}: {place}" for place in places]
    prompt = Check("gold not in prompts", not said, said[0] if said else f"{len(run.sample)} prompts")
    if run.queue is None:
        return [prompt]
    detail = kept[0] if kept else f"sandboxes of {len(searched)} tasks, before the first turn"
    return [prompt, Check("gold not in sandboxes", not kept, detail)]


@asynccontextmanager
async def _queue(provider: Provider | None, specs: Sequence[SandboxSpec], size: int) -> AsyncIterator[SandboxQueue | None]:
    if provider is None:
        yield None
        return
    pool = Pool(provider, size)
    try:
        for spec in specs:
            await pool.warm(spec, 1)  # the start of a sandbox is no part of the first turn
        yield queue_for(pool)
    finally:
        await pool.close()
