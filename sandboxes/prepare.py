"""``setup`` of a spec, run once: its result is an image that every sandbox of the spec starts from.

- The commands run as root in a container of their own with the spec's limits, a writable system, and no network unless the
  spec opens it. The first that fails, or runs over the time, is an error that names image, command and exit code; its
  container is gone by then and nothing is kept.
- /workspace, which is an empty memory file system in each episode, is kept aside in the image and copied in at each start.
- An image is found by the hash of what it is made from; processes that want the same one wait for the first.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

from sandboxes.bootstrap import cache_directory
from sandboxes.contract import SandboxImageError, SandboxSpec
from sandboxes.handle import Handle
from sandboxes.images import Image

PREPARED_LABEL = "agentrl.prepared"
_TEMPLATE = "/opt/agentrl-workspace"
_KEEP = f"""
set -e
cd /
rm -rf {_TEMPLATE}
cp -a /workspace {_TEMPLATE}
chown -R 1000:1000 {_TEMPLATE}
rm -rf /workspace
mkdir /workspace
"""
_KEEP_S = 600.0
_SETTLE_S = 30.0
_ASK_AGAIN_S = 0.1


class Preparing(Protocol):
    """What a provider has to offer for it."""

    name: str

    async def begin_setup(self, spec: SandboxSpec, image: Image) -> Handle: ...

    async def commit(self, container: str, name: str, labels: dict[str, str]) -> str: ...

    async def find_image(self, name: str) -> str | None: ...

    async def destroy(self, sandbox: Handle) -> None: ...


async def prepared(provider: Preparing, spec: SandboxSpec, image: Image) -> Image:
    """The image after ``spec.setup``, made now or before. `SandboxImageError` for a command that failed."""
    recipe = hashlib.sha256(repr((image.digest, spec.setup, spec.setup_network, _KEEP)).encode()).hexdigest()[:24]
    name = f"agentrl-prepared-{recipe}"
    async with _one_at_a_time(recipe):
        digest = await provider.find_image(name) or await _make(provider, spec, image, name, recipe)
    return replace(image, digest=digest, template=_TEMPLATE)


async def _make(provider: Preparing, spec: SandboxSpec, image: Image, name: str, recipe: str) -> str:
    ttl_s = spec.setup_timeout_s + _KEEP_S + 2 * _SETTLE_S
    handle = await provider.begin_setup(replace(spec, ttl_s=ttl_s, idle_s=ttl_s, workdir="/workspace"), image)
    try:
        give_up = time.monotonic() + spec.setup_timeout_s
        for command in spec.setup:
            left = max(0.001, give_up - time.monotonic())
            result = await handle.exec(command, timeout=left)
            if result.exit_code != 0:
                how = f"did not end within setup_timeout_s={spec.setup_timeout_s:g}" if result.timed_out else None
                raise _failed(provider, spec, command, how or f"ended with exit code {result.exit_code}", result.stderr)
        kept = await handle.exec(_KEEP, timeout=_KEEP_S)
        if kept.exit_code != 0:
            raise _failed(provider, spec, "keeping /workspace", f"ended with exit code {kept.exit_code}", kept.stderr)
        return await provider.commit(handle.id, name, {PREPARED_LABEL: recipe})
    finally:
        await provider.destroy(handle)


def _failed(provider: Preparing, spec: SandboxSpec, command: str, how: str, stderr: bytes) -> SandboxImageError:
    told = stderr.decode(errors="replace").strip()[-500:]
    what = f"{provider.name}, setup of image {spec.image}: {command!r:.300} {how}"
    return SandboxImageError(f"{what}: {told}" if told else what)


def lock_file(recipe: str) -> Path:
    """Held while an image is prepared or looked for; its time is that of the image's last use on this host."""
    return cache_directory() / f"prepare-{recipe}.lock"


@asynccontextmanager
async def _one_at_a_time(recipe: str) -> AsyncIterator[None]:
    file = lock_file(recipe)
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(file, "a") as lock:
            while not _locked(lock):
                await asyncio.sleep(_ASK_AGAIN_S)
            # Its file may have been removed, with the image, while this one waited.
            if file.exists() and os.path.samestat(file.stat(), os.fstat(lock.fileno())):
                os.utime(file)
                yield
                return


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
