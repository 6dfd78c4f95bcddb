"""The sandboxes that an environment declares, for one episode or for its grading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.environment.base import Environment
from agentrl.environment.limits import uncounted
from agentrl.errors import EnvironmentFault
from sandboxes.contract import SandboxPool
from sandboxes.lazy import LazySandbox, SandboxQueue

_MAIN = ""


@dataclass(frozen=True, slots=True)
class Boxes:
    """``main`` is None for an environment without a sandbox; ``others`` are those of ``Environment.sandboxes`` by name."""

    main: LazySandbox | None
    others: Mapping[str, LazySandbox]


def queue_for(pool: SandboxPool | None) -> SandboxQueue | None:
    """The queue that all episodes on ``pool`` share; waiting in it does not count against the limits of tools and graders."""
    return None if pool is None else SandboxQueue(pool, uncounted)


@asynccontextmanager
async def boxes_of(environment: Environment, queue: SandboxQueue | None) -> AsyncIterator[Boxes]:
    """Sandboxes as ``environment`` declares them, taken at their first use and given back at the end."""
    specs = dict(environment.sandboxes)
    if environment.sandbox is not None:
        specs[_MAIN] = environment.sandbox
    if not specs:
        yield Boxes(None, {})
        return
    if queue is None:
        raise EnvironmentFault(f"environment {environment.name!r} needs a sandbox, and no pool was given")
    reserved = queue.reserve(specs)
    try:
        yield Boxes(reserved.boxes.get(_MAIN), {name: box for name, box in reserved.boxes.items() if name != _MAIN})
    finally:
        await reserved.release()
