"""Which provider a machine offers: Docker, else Podman's socket, else bubblewrap, else none; always with the reason."""

from __future__ import annotations

import asyncio

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.contract import Provider, SandboxSpec, SandboxUnavailable
from sandboxes.local import UnsafeLocal

ORDER = ("docker", "podman", "bubblewrap")

_WHAT_TO_INSTALL = (
    "install one of them: a Docker daemon (as root: scripts/install-docker.sh, then scripts/start-docker.sh), "
    "Podman with its socket (podman system service), or bubblewrap (as root: scripts/install-bubblewrap.sh)"
)


async def choose(preference: str | None = None, unsafe_local: bool = False) -> tuple[Provider, str]:
    """The first provider that works here and why it was taken, for people to read.

    ``preference`` asks for one of `ORDER` and no other. ``unsafe_local`` asks for no isolation at all. `SandboxUnavailable`
    says what was tried and what to install; ValueError names the known providers.
    """
    if unsafe_local:
        return UnsafeLocal(), "local: no isolation at all, as asked for; code of the model runs as this user"
    if preference is not None and preference not in ORDER:
        raise ValueError(f"unknown sandbox provider {preference!r}; known: {', '.join(ORDER)}")
    refusals: list[str] = []
    for name in (preference,) if preference else ORDER:
        try:
            provider, description = await _open(name)
            # A daemon that answers and a program that is installed may still be forbidden what a sandbox needs.
            await provider.destroy(await provider.create(SandboxSpec()))
        except SandboxUnavailable as error:
            refusals.append(f"{name}: {error}")
            continue
        why = f" (before it: {'; '.join(refusals)})" if refusals else ""
        return provider, f"{name}: {description}{why}"
    raise SandboxUnavailable(f"no sandbox: {'; '.join(refusals)}; {_WHAT_TO_INSTALL}")


async def _open(name: str) -> tuple[Provider, str]:
    if name == "bubblewrap":
        bubblewrap = await asyncio.to_thread(Bubblewrap)
        return bubblewrap, bubblewrap.description
    from sandboxes.docker import Docker  # its SDK takes a third of a second to import

    engine = await Docker.connect(name)
    return engine, engine.description
