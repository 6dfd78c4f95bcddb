"""Containers of a Docker daemon, or of Podman behind its Docker-compatible socket, with the agent as their first process.

- The stream is attached before the start and held by this process alone: when the process dies, the agent sees the end of
  its input and the container is gone, without anybody's help.
- Containers carry their owner in a label; `sweep` removes those whose owner is provably dead on this host, and no others.
- The SDK's blocking calls run in threads of our own; a command never costs a call to the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import docker.errors
import docker.types
import requests

from sandboxes import bundle
from sandboxes.agent.settings import IN_PLACE, Settings
from sandboxes.connection import Connection
from sandboxes.contract import Capabilities, Sandbox, SandboxDied, SandboxSpec, SandboxUnavailable
from sandboxes.handle import Handle, greet
from sandboxes.images import ensure_image
from sandboxes.limits import OPEN_FILES, check_enforceable, command_limits, tmpfs_options
from sandboxes.ownership import Owner

OWNER_LABEL = "agentrl.owner"

DEFAULT_IMAGE = SandboxSpec().image

_PLACES = ("/workspace", "/tmp", "/dev/shm", "/dev/mqueue")
_CAPABILITIES = ["SETUID", "SETGID", "KILL"]
_OWN_PROCESSES = 8
_START_S = 60.0
_CONNECT_S = 5.0
_CALL_S = 120
_ATTACH = (
    "POST /containers/{id}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
    "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
)
_ENGINE_ERRORS = (docker.errors.DockerException, requests.RequestException, OSError)
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
    )

    def __init__(self, name: str, url: str, client: docker.DockerClient, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self.url = url
        self.description = ""
        self._is_podman = False
        self._client = client
        self._threads = threads
        self._digests: dict[str, str] = {}

    @classmethod
    async def connect(cls, name: str = "docker", url: str | None = None, image: str = DEFAULT_IMAGE) -> Docker:
        """Find the daemon (``name``: docker or podman), sweep, have the image. `SandboxUnavailable` says what is missing."""
        threads = ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1), thread_name_prefix="sandbox-engine")
        refusals = []
        for candidate in [url] if url else _usual_urls(name):
            try:
                client, version, is_podman = await asyncio.get_running_loop().run_in_executor(threads, _open, candidate)
            except _ENGINE_ERRORS as error:
                refusals.append(f"no daemon at {candidate} ({_short(error)})")
                continue
            engine = cls(name, candidate, client, threads)
            engine._is_podman = is_podman
            digest = await engine._image(image)
            await engine.sweep()
            engine.description = f"daemon {version} at {candidate}, image {image} {digest[:19]}"
            return engine
        raise SandboxUnavailable("; ".join(refusals) or "no socket is known")

    async def create(self, spec: SandboxSpec) -> Handle:
        """See `sandboxes.contract.Provider`."""
        check_enforceable(spec, self.name)
        digest = await self._image(spec.image)
        container = await self._shielded(partial(self._create, spec, digest), undo=self._remove)
        handle: Handle | None = None
        try:
            demultiplexer = Demultiplexer()
            name = f"{self.name} container {container[:12]}"
            stream = await attach(self.url, container)
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(name, demultiplexer), sock=stream
            )
            handle = Handle(container, spec, connection)
            await self._call(partial(self._client.api.start, container))
            await greet(handle, _START_S)
        except (SandboxDied, *_ENGINE_ERRORS) as error:
            await self._abandon(container, handle)
            told = demultiplexer.complaints.decode(errors="replace").strip()
            raise SandboxUnavailable(f"{self.name} container did not start: {told or _short(error)}") from None
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(container, handle))
            raise
        return handle

    async def reset(self, sandbox: Sandbox) -> bool:
        """See `sandboxes.contract.Provider`."""
        assert isinstance(sandbox, Handle)
        return not await sandbox.reset()

    async def destroy(self, sandbox: Sandbox) -> None:
        """See `sandboxes.contract.Provider`."""
        assert isinstance(sandbox, Handle)
        await asyncio.shield(self._abandon(sandbox.id, sandbox))

    async def digest(self, spec: SandboxSpec) -> str:
        """The image's digest."""
        return await self._image(spec.image)

    async def sweep(self) -> int:
        """Remove containers whose owner was a process of this host and is dead. Returns how many."""
        return await self._call(self._sweep)

    def _sweep(self) -> int:
        removed = 0
        for listed in self._client.api.containers(all=True, filters={"label": OWNER_LABEL}):
            owner = Owner.parse(listed["Labels"][OWNER_LABEL])
            if owner is not None and owner.certainly_dead():
                self._remove(listed["Id"])
                removed += 1
        return removed

    async def _image(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = await self._call(partial(ensure_image, self._client, name))
        return self._digests[name]

    def _create(self, spec: SandboxSpec, digest: str) -> str:
        api = self._client.api
        memory = f"{spec.memory_mb}m"
        ulimits = {"nofile": OPEN_FILES, "core": 0}
        extra: dict[str, Any] = {}
        places = tmpfs_options(spec, count_inodes=not self._is_podman)
        if not self._is_podman:
            # The agent's output is the protocol; a log of it would fill the host's disk.
            extra["log_config"] = docker.types.LogConfig(type="none")
        else:
            # Read-only containers of Podman get these two writable.
            places.update({"/run": "ro,mode=755,size=1m", "/var/tmp": "ro,mode=755,size=1m"})
            # Podman's defaults may exceed the hard limit; counted per user of the host, over all its sandboxes.
            ulimits["nproc"] = 64 * spec.pids
        host = api.create_host_config(
            auto_remove=True,
            network_mode="bridge" if spec.network else "none",
            cap_drop=["ALL"],
            cap_add=_CAPABILITIES,
            security_opt=["no-new-privileges"],
            read_only=True,
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
        settings = Settings(
            reset=IN_PLACE,
            places={place: place for place in _PLACES},
            limits=command_limits(spec),
            ttl_s=spec.ttl_s,
            idle_s=spec.idle_s,
        )
        made = api.create_container(
            image=digest,
            entrypoint=["python3", "-u", "-I", "-S", "-c", bundle.program(), "agent", settings.to_json()],
            command=[],
            stdin_open=True,
            user="0:0",
            working_dir="/workspace",
            hostname="sandbox",
            stop_signal="SIGKILL",
            labels={OWNER_LABEL: Owner.current().prefix},
            host_config=host,
        )
        return str(made["Id"])

    def _remove(self, container: str) -> None:
        try:
            self._client.api.remove_container(container, force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code not in (404, 409):
                raise
            if error.status_code == 409:  # its end has begun without us
                with contextlib.suppress(docker.errors.NotFound):
                    self._client.api.wait(container, condition="removed", timeout=_CALL_S)

    async def _abandon(self, container: str, handle: Handle | None) -> None:
        if handle is not None:
            handle.connection.close()
        with contextlib.suppress(*_ENGINE_ERRORS):  # the agent's end takes the container with it, and the sweep comes later
            await self._call(partial(self._remove, container))

    async def _call(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _shielded(self, work: Callable[[], str], undo: Callable[[str], None]) -> str:
        """A call whose effect is undone when its caller is cancelled meanwhile."""
        running = asyncio.ensure_future(self._call(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            with contextlib.suppress(*_ENGINE_ERRORS):
                await self._call(partial(undo, await running))
            raise
        except _ENGINE_ERRORS as error:
            raise SandboxUnavailable(f"{self.name} at {self.url} made no container: {_short(error)}") from None


class Demultiplexer:
    """Undoes the engine's framing: an 8-byte header with stream and length before each piece of output."""

    _HEADER = struct.Struct(">BxxxI")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.complaints = bytearray()

    def __call__(self, data: bytes) -> bytes:
        """The bytes of standard output among those received; the end of standard error is kept for messages."""
        self._bytes += data
        out = bytearray()
        while len(self._bytes) >= self._HEADER.size:
            stream, length = self._HEADER.unpack_from(self._bytes)
            end = self._HEADER.size + length
            if len(self._bytes) < end:
                break
            piece = self._bytes[self._HEADER.size : end]
            del self._bytes[:end]
            if stream == 1:
                out += piece
            else:
                self.complaints += piece
                del self.complaints[:-2000]
        return bytes(out)


async def attach(url: str, container: str) -> socket.socket:
    """A stream to a created container's standard streams, as a plain socket."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    if parts.scheme == "unix":
        stream, address = socket.socket(socket.AF_UNIX), parts.path
    else:
        stream, address = socket.socket(socket.AF_INET), (parts.hostname, parts.port or 2375)  # type: ignore[assignment]
    stream.setblocking(False)
    try:
        async with asyncio.timeout(_CALL_S):
            await loop.sock_connect(stream, address)
            await loop.sock_sendall(stream, _ATTACH.format(id=container).encode())
            answer = b""
            # Nothing follows the headers before the container starts.
            while not answer.endswith(b"\r\n\r\n"):
                received = await loop.sock_recv(stream, 4096)
                if not received:
                    raise ConnectionError("the daemon closed the stream")
                answer += received
        if answer.split(b" ", 2)[1] not in (b"101", b"200"):
            raise ConnectionError(f"attach was refused: {answer.splitlines()[0].decode(errors='replace')}")
    except BaseException:
        stream.close()
        raise
    return stream


def _usual_urls(name: str) -> list[str]:
    if name == "docker":
        return [os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"]
    own = f"{os.environ.get('XDG_RUNTIME_DIR', f'/run/user/{os.geteuid()}')}/podman/podman.sock"
    return (
        [os.environ["CONTAINER_HOST"]]
        if "CONTAINER_HOST" in os.environ
        else ["unix:///run/podman/podman.sock", f"unix://{own}"]
    )


def _open(url: str) -> tuple[docker.DockerClient, str, bool]:
    """A client, the daemon's version, and whether it is Podman, whatever variable named its socket."""
    if urlsplit(url).scheme not in ("unix", "tcp", "http"):
        raise OSError("only unix:// and plain tcp:// sockets can be attached to; forward others to a local socket")
    client = docker.DockerClient(base_url=url, timeout=_CONNECT_S, version="auto")
    told = client.version()
    client.close()
    is_podman = any("Podman" in component.get("Name", "") for component in told.get("Components") or ())
    return docker.DockerClient(base_url=url, timeout=_CALL_S, version="auto", max_pool_size=16), str(told["Version"]), is_podman


def _short(error: BaseException) -> str:
    text = str(error)
    for known in ("No such file or directory", "Connection refused", "Permission denied"):
        if known in text:
            return known
    return text[:300]
