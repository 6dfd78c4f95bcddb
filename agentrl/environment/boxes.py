"""The sandboxes that an environment declares, for one episode or for its grading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.environment.base import Environment
from agentrl.environment.boundary import named_faults
from agentrl.environment.code_places import defined_at
from agentrl.environment.limits import uncounted
from agentrl.errors import EnvironmentFault, UsageError
from agentrl.types import Task
from sandboxes.contract import SandboxPool, SandboxSpec
from sandboxes.lazy import LazySandbox, SandboxQueue
from sandboxes.wear import lasting

MAIN = ""


@dataclass(frozen=True, slots=True)
class Boxes:
    """``main`` is None for an environment without a sandbox; ``others`` are those of ``Environment.sandboxes`` by name."""

    main: LazySandbox | None
    others: Mapping[str, LazySandbox]


def queue_for(pool: SandboxPool | None) -> SandboxQueue | None:
    """The queue that all episodes on ``pool`` share; waiting in it does not count against the limits of tools and graders."""
    return None if pool is None else SandboxQueue(pool, uncounted)


def specs_of(environment: Environment, task: Task) -> dict[str, SandboxSpec]:
    """What the sandboxes of an episode of ``task`` are made of, by name; the main one's is empty. `EnvironmentFault`.

    Each lives long enough for the environment's own limits.
    """
    specs = {name: _lasting(environment, spec) for name, spec in environment.sandboxes.items()}
    with named_faults(environment.name, task.id, "sandbox_for"):
        main = environment.sandbox_for(task)
    if main is None:
        return specs
    if not isinstance(main, SandboxSpec):
        raise EnvironmentFault(
            f"environment {environment.name!r}, task {task.id!r}: sandbox_for() must return a SandboxSpec or None, "
            f"not {main!r:.100}{defined_at(environment.sandbox_for)}"
        )
    return {**specs, MAIN: _lasting(environment, main)}


def _lasting(environment: Environment, spec: SandboxSpec) -> SandboxSpec:
    longest = max(environment.max_seconds, environment.grade_timeout_s)
    # The set-up may take max_seconds, and then the turns.
    return lasting(spec, use_s=max(2 * environment.max_seconds, environment.grade_timeout_s), silence_s=longest)


def distinct_specs(environment: Environment, tasks: Iterable[Task]) -> list[SandboxSpec]:
    """Those that the episodes of ``tasks`` use, each once, in the order of the tasks."""
    found: list[SandboxSpec] = []
    for task in tasks:
        found += [spec for spec in specs_of(environment, task).values() if spec not in found]
        if not environment.has_sandbox_for:
            break
    return found


def check_room(environment: Environment, pool_size: int) -> None:
    """`UsageError` when one episode needs more sandboxes than may exist: it would wait for ever."""
    if environment.n_sandboxes > pool_size:
        raise UsageError(
            f"An episode of {environment.name} uses {environment.n_sandboxes} sandboxes at once, and "
            f"sandbox.pool_size={pool_size} lets no more exist: set sandbox.pool_size={environment.n_sandboxes} or more."
        )


@asynccontextmanager
async def boxes_of(
    environment: Environment, task: Task, queue: SandboxQueue | None, *, grading: bool = False
) -> AsyncIterator[Boxes]:
    """Sandboxes as ``environment`` declares them for ``task``, taken at their first use and given back at the end.

    Those for grading come before those of new episodes: an episode that has ended needs only its verdict.
    """
    specs = specs_of(environment, task)
    if not specs:
        yield Boxes(None, {})
        return
    if queue is None:
        raise EnvironmentFault(f"environment {environment.name!r} needs a sandbox, and no pool was given")
    reserved = queue.reserve(specs, first=grading)
    try:
        yield Boxes(reserved.boxes.get(MAIN), {name: box for name, box in reserved.boxes.items() if name != MAIN})
    finally:
        await reserved.close()
