"""Containers of a Docker daemon, or of Podman behind its Docker-compatible socket, with the agent as their first process.

- The stream is attached before the start and held by this process alone: when the process dies, the agent sees the end of
  its input and the container is gone, without anybody's help.
- A daemon that stops takes the streams and with them the containers, live-restore or not: what was running is `SandboxDied`.
- Containers carry their owner in a label; `sweep` removes those whose owner is provably dead on this host, those of ours that
  could not be removed before or that the daemon made after their creation was given up, and no others.
- The SDK's blocking calls run in threads of our own. Those that pull, build or keep images take minutes and have threads apart:
  they never hold up a start or a removal. A command never costs a call to the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import docker.errors
import docker.types

from sandboxes import bundle
from sandboxes.agent.memory import PATHS as OOM_COUNTERS
from sandboxes.agent.settings import IN_PLACE, Settings
from sandboxes.connection import Connection
from sandboxes.contract import Capabilities, Sandbox, SandboxDied, SandboxSpec, SandboxUnavailable, SandboxUnsupported
from sandboxes.engine import CALL_S, ENGINE_ERRORS, Daemon, Demultiplexer, attach, find_daemon, short
from sandboxes.handle import Handle, greet
from sandboxes.images import Image, ensure_image
from sandboxes.limits import OPEN_FILES, check_enforceable, command_limits, tmpfs_options
from sandboxes.ownership import OWNER_LABEL, Owner
from sandboxes.prepare import Preparing, prepared

DEFAULT_IMAGE = SandboxSpec().image

_PLACES = ("/workspace", "/tmp", "/dev/shm", "/dev/mqueue")
_CAPABILITIES = ["SETUID", "SETGID", "KILL"]
_CAPABILITIES_OF_SETUP = [*_CAPABILITIES, "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]
_OWN_PROCESSES = 8
_START_S = 60.0
_IMAGES_AT_ONCE = 16
"""Calls that pull, build or keep images. They mostly wait, and the daemon has a limit of its own."""
Result = TypeVar("Result")


class Docker:
    """A provider; made by `connect`."""

    capabilities = Capabilities(
        network_isolated=True,
        memory_limit=True,
        pids_limit=True,
        cpu_limit=True,
        seccomp=True,
        fresh_namespaces=False,
        snapshots=True,
    )

    def __init__(self, name: str, daemon: Daemon, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self.url = daemon.url
        self.description = ""
        self._is_podman = daemon.is_podman
        self._client = daemon.client
        self._threads = threads
        self._image_threads = ThreadPoolExecutor(max_workers=_IMAGES_AT_ONCE, thread_name_prefix="sandbox-images")
        self._images: dict[tuple[Any, ...], Image] = {}
        self._image_locks: dict[tuple[Any, ...], asyncio.Lock] = {}
        self._lost: set[str] = set()
        """Names of containers that may be there, now or later: a busy daemon makes some after nobody waits any more."""

    @classmethod
    async def connect(cls, name: str = "docker", url: str | None = None, image: str = DEFAULT_IMAGE) -> Docker:
        """Find the daemon (``name``: docker or podman), sweep, have the image. `SandboxUnavailable` says what is missing."""
        threads = ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1), thread_name_prefix="sandbox-engine")
        daemon = await asyncio.get_running_loop().run_in_executor(threads, find_daemon, name, url)
        engine = cls(name, daemon, threads)
        digest = await engine.digest(SandboxSpec(image=image))
        await engine.sweep()
        engine.description = f"daemon {daemon.version} at {daemon.url}, image {image} {digest[:19]}"
        return engine

    async def create(self, spec: SandboxSpec) -> Handle:
        """See `sandboxes.contract.Provider`."""
        check_enforceable(spec, self)
        return await self._begin(spec, await self._image(spec))

    async def reset(self, sandbox: Sandbox) -> bool:
        """See `sandboxes.contract.Provider`."""
        assert isinstance(sandbox, Handle)
        return not await sandbox.reset()

    async def destroy(self, sandbox: Sandbox) -> None:
        """See `sandboxes.contract.Provider`."""
        assert isinstance(sandbox, Handle)
        await asyncio.shield(self._abandon(sandbox.id, sandbox))

    async def digest(self, spec: SandboxSpec) -> str:
        """The image's digest; that of the image made by ``setup`` where there is one."""
        return (await self._image(spec)).digest

    async def sweep(self) -> int:
        """See `sandboxes.contract.Provider`."""
        return await self._call(self._sweep)

    async def commit(self, container: str, name: str, labels: dict[str, str]) -> str:
        """Keep a container's file system as an image; its digest."""
        # Whoever runs the image by hand must not inherit an owner that may be dead.
        changes = [f'LABEL "{label}"="{value}"' for label, value in {**labels, OWNER_LABEL: ""}.items()]
        made = await self._call(
            partial(self._client.api.commit, container, repository=name, tag="latest", pause=False, changes=changes),
            self._image_threads,
        )
        return str(made["Id"])

    async def find_image(self, name: str) -> str | None:
        """Digest of an image that is here."""
        with contextlib.suppress(docker.errors.ImageNotFound):
            return str((await self._call(partial(self._client.images.get, name))).id)
        return None

    async def begin_setup(self, spec: SandboxSpec, image: Image) -> Handle:
        """A container in which the setup's commands are root and the system is writable."""
        return await self._begin(spec, image, preparing=True)

    async def _begin(self, spec: SandboxSpec, image: Image, *, preparing: bool = False) -> Handle:
        # The name is ours, so that a container whose creation got no answer can be found.
        container = f"agentrl-{secrets.token_hex(12)}"
        await self._shielded(partial(self._create, container, spec, image, preparing), container)
        handle: Handle | None = None
        demultiplexer = Demultiplexer()
        try:
            stream = await attach(self.url, container)
            name = f"{self.name} container {container}"
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(name, demultiplexer), sock=stream
            )
            handle = Handle(container, spec, connection)
            await self._call(partial(self._client.api.start, container))
            await greet(handle, _START_S)
        except (SandboxDied, *ENGINE_ERRORS) as error:
            await self._abandon(container, handle)
            told = demultiplexer.complaints.decode(errors="replace").strip()
            raise SandboxUnavailable(
                f"{self.name} container of image {spec.image} did not start: {told or short(error)}"
            ) from None
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(container, handle))
            raise
        return handle

    def _sweep(self) -> int:
        removed = 0
        for listed in self._client.api.containers(all=True, filters={"label": OWNER_LABEL}):
            owner = Owner.parse(listed["Labels"][OWNER_LABEL])
            lost = self._lost.intersection(name.removeprefix("/") for name in listed["Names"] or ())
            if lost or (owner is not None and owner.certainly_dead()):
                removed += self._remove(listed["Id"])
                self._lost -= lost
        return removed

    async def _image(self, spec: SandboxSpec) -> Image:
        key = (spec.image, spec.setup, spec.setup_network)
        async with self._image_locks.setdefault(key, asyncio.Lock()):
            if key not in self._images:
                image = await self._call(partial(ensure_image, self._client, spec.image), self._image_threads)
                preparing: Preparing = self
                self._images[key] = await prepared(preparing, spec, image) if spec.setup else image
        return self._images[key]

    def _create(self, container: str, spec: SandboxSpec, image: Image, preparing: bool) -> None:
        python = image.launcher or ("python3",)
        settings = self._settings(spec, image, preparing)
        self._client.api.create_container(
            name=container,
            image=image.digest,
            entrypoint=[*python, "-u", "-I", "-S", "-c", bundle.program(), "agent", settings.to_json()],
            command=[],
            stdin_open=True,
            user="0:0",
            working_dir=spec.workdir,
            hostname="sandbox",
            stop_signal="SIGKILL",
            labels={OWNER_LABEL: Owner.current().prefix},
            host_config=self._host_config(spec, preparing),
        )

    def _settings(self, spec: SandboxSpec, image: Image, preparing: bool) -> Settings:
        places = {place: place for place in _PLACES}
        kept = ["/workspace"] if preparing else []
        if not spec.read_only and not any(f"{spec.workdir}/".startswith(f"{place}/") for place in _PLACES):
            places[spec.workdir] = spec.workdir
            kept.append(spec.workdir)
        return Settings(
            reset=IN_PLACE,
            places=places,
            kept=kept,
            template=image.template,
            workdir=spec.workdir,
            launcher=list(image.launcher),
            identity=(0, 0) if preparing else (1000, 1000),
            limits={} if preparing else command_limits(spec),
            ttl_s=spec.ttl_s,
            idle_s=spec.idle_s,
            oom_counters=OOM_COUNTERS,
        )

    def _host_config(self, spec: SandboxSpec, preparing: bool) -> dict[str, Any]:
        memory = f"{spec.memory_mb}m"
        ulimits = {"nofile": OPEN_FILES, "core": 0}
        extra: dict[str, Any] = {}
        places = tmpfs_options(spec, count_inodes=not self._is_podman)
        if preparing:
            del places["/workspace"]
        if not self._is_podman:
            # The agent's output is the protocol; a log of it would fill the host's disk.
            extra["log_config"] = docker.types.LogConfig(type="none")
        else:
            # Read-only containers of Podman get these two writable.
            places.update({"/run": "ro,mode=755,size=1m", "/var/tmp": "ro,mode=755,size=1m"})
            # Podman's defaults may exceed the hard limit; counted per user of the host, over all its sandboxes.
            ulimits["nproc"] = 64 * spec.pids
        network = spec.setup_network if preparing else spec.network
        config: dict[str, Any] = self._client.api.create_host_config(
            auto_remove=True,
            network_mode=self._open_network() if network else "none",
            cap_drop=["ALL"],
            cap_add=_CAPABILITIES_OF_SETUP if preparing else _CAPABILITIES,
            security_opt=["no-new-privileges"],
            read_only=spec.read_only and not preparing,
            # Programs that the workload compiles may run.
            tmpfs={path: f"exec,{options}" for path, options in places.items()},
            pids_limit=spec.pids + _OWN_PROCESSES,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=int(spec.cpus * 1e9),
            ulimits=[docker.types.Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items()],
            init=False,
            **extra,
        )
        return config

    def _open_network(self) -> str:
        # The daemon's filter also finds names that only contain the word.
        if not self._is_podman and "bridge" not in [network["Name"] for network in self._client.api.networks(names=["bridge"])]:
            raise SandboxUnsupported(
                f"{self.name}: the spec opens the network, but the daemon at {self.url} has none (--bridge none)"
            )
        return "bridge"

    def _remove(self, container: str) -> bool:
        """Whether there was anything to remove."""
        try:
            self._client.api.remove_container(container, force=True, v=True)
            return True
        except docker.errors.APIError as error:
            if error.status_code not in (404, 409):
                raise
            if error.status_code == 409:  # its end has begun without us
                with contextlib.suppress(docker.errors.NotFound):
                    self._client.api.wait(container, condition="removed", timeout=CALL_S)
            return error.status_code == 409

    async def _abandon(self, container: str, handle: Handle | None) -> None:
        if handle is not None:
            handle.connection.close()
        try:
            # The agent's end takes the container with it, but for one that the daemon can't remove just now.
            await self._call(partial(self._remove, container))
        except ENGINE_ERRORS:
            self._lost.add(container)

    async def _call(self, work: Callable[[], Result], threads: ThreadPoolExecutor | None = None) -> Result:
        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, work)

    async def _shielded(self, create: Callable[[], None], container: str) -> None:
        """A creation that is undone when its caller is cancelled meanwhile, or when it got no clear answer."""
        running = asyncio.ensure_future(self._call(create))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if running.exception() is not None:
                self._lost.add(container)
            await asyncio.shield(self._abandon(container, None))
            raise
        except ENGINE_ERRORS as error:
            self._lost.add(container)
            await self._abandon(container, None)
            raise SandboxUnavailable(f"{self.name} at {self.url} made no container: {short(error)}") from None
