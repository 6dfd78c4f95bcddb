"""Sandboxes for an environment that is tried or tested here, outside of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.environment.base import Environment
from agentrl.errors import NotReadyError, UsageError
from sandboxes.contract import Provider, SandboxError
from sandboxes.pool import Pool


async def provider_for(
    environment: Environment, preference: str | None = None, unsafe_local: bool = False
) -> tuple[Provider | None, str]:
    """The provider that a run of ``environment`` would take on this machine, and why; None when it needs no sandbox.

    ``preference`` and ``unsafe_local`` are as for `sandboxes.choose.choose`. `UsageError` for a provider that is not known,
    `NotReadyError` when there is none.
    """
    if not environment.uses_sandboxes:
        return None, "none: the environment declares no sandbox"
    from sandboxes.choose import choose

    try:
        return await choose(preference, unsafe_local)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except SandboxError as error:
        raise NotReadyError(str(error)) from None


@asynccontextmanager
async def pool_for(environment: Environment, size: int = 2) -> AsyncIterator[Pool | None]:
    """A pool of that provider, closed at the end; None when the environment needs no sandbox.

    ``size``: see `sandboxes.pool.Pool`; it has room for one episode in any case.
    """
    provider, _ = await provider_for(environment)
    pool = Pool(provider, max(size, environment.n_sandboxes)) if provider is not None else None
    try:
        yield pool
    finally:
        if pool is not None:
            await pool.close()
