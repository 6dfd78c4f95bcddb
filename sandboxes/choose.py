"""Which provider a machine offers: Docker, else Podman's socket, else bubblewrap, else none; always with the reason."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.contract import Provider, SandboxError, SandboxSpec, SandboxUnavailable
from sandboxes.local import UnsafeLocal

ORDER = ("docker", "podman", "bubblewrap")

_WHAT_TO_INSTALL = (
    "install one of them: a Docker daemon (as root: scripts/install-docker.sh, then scripts/start-docker.sh), "
    "Podman with its socket (podman system service), or bubblewrap (as root: scripts/install-bubblewrap.sh)"
)


async def choose(preference: str | None = None, unsafe_local: bool = False) -> tuple[Provider, str]:
    """The first provider that works here and why it was taken, for people to read.

    ``preference`` asks for one of `ORDER` and no other, or for somebody's own provider as module:Class or
    path/to/file.py:Class. ``unsafe_local`` asks for no isolation at all. `SandboxUnavailable` says what was tried and what to
    install; ValueError names the known providers, or what is wrong with that class.
    """
    if unsafe_local:
        return UnsafeLocal(), "local: no isolation at all, as asked for; code of the model runs as this user"
    if preference is not None and ":" in preference:
        return await load(preference), f"{preference}: asked for by name"
    if preference is not None and preference not in ORDER:
        raise ValueError(f"unknown sandbox provider {preference!r}; known: {', '.join(ORDER)}, or module:Class")
    refusals: list[str] = []
    for name in (preference,) if preference else ORDER:
        try:
            provider, description = await _open(name)
            # A daemon that answers and a program that is installed may still be forbidden what a sandbox needs.
            await provider.destroy(await provider.create(SandboxSpec()))
        except SandboxError as error:
            refusals.append(f"{name}: {error}")
            continue
        why = f" (before it: {'; '.join(refusals)})" if refusals else ""
        return provider, f"{name}: {description}{why}"
    others = " and ".join(name for name in ORDER if name != preference)
    elsewhere = f"without asking for {preference}, {others} are tried as well; or " if preference else ""
    raise SandboxUnavailable(f"no sandbox: {'; '.join(refusals)}; {elsewhere}{_WHAT_TO_INSTALL}")


async def _open(name: str) -> tuple[Provider, str]:
    if name == "bubblewrap":
        bubblewrap = await asyncio.to_thread(Bubblewrap)
        return bubblewrap, bubblewrap.description
    from sandboxes.docker import Docker  # its SDK takes a third of a second to import

    engine = await Docker.connect(name)
    return engine, engine.description


async def load(name: str) -> Provider:
    """A provider of somebody else: what calling ``module:Class`` or ``path/to/file.py:Class`` without arguments gives.

    Any callable will do, and it may be async. ValueError says what is missing.
    """
    place, _, attribute = name.rpartition(":")
    try:
        made = getattr(_module(place), attribute)()
        provider = await made if inspect.isawaitable(made) else made
    except SandboxError:
        raise
    except Exception as error:
        raise ValueError(f"sandbox provider {name!r}: {type(error).__name__}: {error}") from error
    wanted = ("name", "capabilities", "create", "reset", "destroy", "digest", "sweep")
    if missing := [part for part in wanted if not hasattr(provider, part)]:
        raise ValueError(f"sandbox provider {name!r} has no {', '.join(missing)}; see sandboxes.contract.Provider")
    loaded: Provider = provider
    return loaded


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(f"sandbox_provider_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
