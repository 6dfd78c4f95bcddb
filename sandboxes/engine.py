"""What Docker and Podman have in common behind the Docker API: finding the socket, attaching a stream, undoing its framing."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from urllib.parse import urlsplit

import docker
import docker.errors
import requests

from sandboxes.contract import SandboxUnavailable

ENGINE_ERRORS = (docker.errors.DockerException, requests.RequestException, OSError)
"""What a daemon that is away, overloaded or unwilling shows itself as."""

CALL_S = 120
"""How long one call of the daemon may take."""

_CONNECT_S = 5.0
_ATTACH = (
    "POST /containers/{id}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
    "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
)


@dataclass(frozen=True)
class Daemon:
    """A daemon that answers. ``is_podman`` whatever variable named its socket."""

    client: docker.DockerClient
    url: str
    version: str
    is_podman: bool


def find_daemon(name: str, url: str | None = None) -> Daemon:
    """The first daemon that answers, at ``url`` or the usual places of ``name``. Blocking. `SandboxUnavailable` lists them."""
    refusals = []
    for candidate in [url] if url else _usual_urls(name):
        try:
            return _open(candidate)
        except ENGINE_ERRORS as error:
            refusals.append(f"no daemon at {candidate} ({short(error)})")
    raise SandboxUnavailable("; ".join(refusals))


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
    """A stream to a container's standard streams, as a plain socket."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    if parts.scheme == "unix":
        stream, address = socket.socket(socket.AF_UNIX), parts.path
    else:
        stream, address = socket.socket(socket.AF_INET), (parts.hostname, parts.port or 2375)  # type: ignore[assignment]
    stream.setblocking(False)
    try:
        async with asyncio.timeout(CALL_S):
            await loop.sock_connect(stream, address)
            await loop.sock_sendall(stream, _ATTACH.format(id=container).encode())
            answer = b""
            # Byte by byte: behind the headers of a running container its output may follow at once.
            while not answer.endswith(b"\r\n\r\n"):
                received = await loop.sock_recv(stream, 1)
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


def _open(url: str) -> Daemon:
    if urlsplit(url).scheme not in ("unix", "tcp", "http"):
        raise OSError("only unix:// and plain tcp:// sockets can be attached to; forward others to a local socket")
    client = docker.DockerClient(base_url=url, timeout=_CONNECT_S, version="auto")
    told = client.version()
    client.close()
    is_podman = any("Podman" in component.get("Name", "") for component in told.get("Components") or ())
    client = docker.DockerClient(base_url=url, timeout=CALL_S, version="auto", max_pool_size=16)
    return Daemon(client, url, str(told["Version"]), is_podman)


def short(error: BaseException) -> str:
    """What went wrong, without the layers it went wrong in."""
    text = str(error)
    for known in ("No such file or directory", "Connection refused", "Permission denied"):
        if known in text:
            return known
    return text[:300]
