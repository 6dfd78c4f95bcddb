"""The sandbox as its user holds it: calls become requests, replies become checked results."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxes.agent import frames
from sandboxes.agent.agent import MAX_OUTPUT
from sandboxes.connection import Connection, UntrustedReply, int_of, seconds
from sandboxes.contract import ExecResult, SandboxDied, SandboxSpec

_MAX_TIMEOUT_S = 24 * 3600.0
_MARK_ROOM = 64


class Handle:
    """A live sandbox behind a connection."""

    def __init__(self, id: str, spec: SandboxSpec, connection: Connection) -> None:
        self.id = id
        self.spec = spec
        self.connection = connection

    @property
    def alive(self) -> bool:
        """Whether its stream still stands."""
        return self.connection.death is None

    async def run_python(
        self, code: str | bytes, *, timeout: float = 10.0, max_output: int = 65536, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        """See `sandboxes.contract.Sandbox`."""
        # Lone surrogates travel; the interpreter inside refuses them as it would in a file.
        body = code.encode("utf-8", "surrogatepass") if isinstance(code, str) else bytes(code)
        return await self._run(None, body, timeout, max_output, env)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int = 65536,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """See `sandboxes.contract.Sandbox`."""
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(part) for part in command]
        if not argv:
            raise ValueError("no command")
        return await self._run(argv, stdin, timeout, max_output, env)

    async def write_file(self, path: str, data: bytes) -> None:
        """See `sandboxes.contract.Sandbox`; OSError (no space, a link, a directory) is the caller's or the workload's doing."""
        await self.connection.call("write_file", {"path": path}, bytes(data))

    async def read_file(self, path: str, max_bytes: int = 16 << 20) -> bytes:
        """See `sandboxes.contract.Sandbox`."""
        if not 0 <= max_bytes <= frames.MAX_BODY:
            raise ValueError(f"max_bytes is {max_bytes}; at most {frames.MAX_BODY} can be read at once")
        try:
            _, body = await self.connection.call("read_file", {"path": path, "max_bytes": max_bytes})
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ValueError(f"{path}: {error.strerror}") from None
            raise
        if len(body) > max_bytes:
            raise self._distrusted(f"{len(body)} bytes read, {max_bytes} asked for")
        return body

    async def ping(self) -> None:
        """One round trip; `SandboxDied` when it fails."""
        await self.connection.call("ping", {})

    async def kill_all(self) -> None:
        """End every process but the sandbox's own; running commands return with exit code -9."""
        header, _ = await self.connection.call("kill_all", {})
        if header.get("killed") is not True:
            raise self._distrusted("processes that can't be killed")

    async def reset(self) -> list[str]:
        """Kill all, wipe every writable place. Returns what is in doubt; an empty list: clean."""
        header, _ = await self.connection.call("reset", {})
        doubts = header.get("doubts")
        if not isinstance(doubts, list):
            return ["reply without a list of doubts"]
        return [str(doubt) for doubt in doubts]

    async def _run(
        self, argv: list[str] | None, body: bytes, timeout: float, max_output: int, env: Mapping[str, str] | None
    ) -> ExecResult:
        timeout_s = seconds(timeout, "timeout")
        if timeout_s > _MAX_TIMEOUT_S:
            raise ValueError(f"timeout is {timeout_s:g} s; at most {_MAX_TIMEOUT_S:g}")
        if not 0 < max_output <= MAX_OUTPUT:
            raise ValueError(f"max_output is {max_output}; between 1 and {MAX_OUTPUT} bytes")
        fields = {
            "argv": argv,
            "env": {**self.spec.env, **(env or {})},
            "timeout_s": timeout_s,
            "max_output": max_output,
        }
        try:
            header, output = await self.connection.call("run", fields, body, timeout_s=timeout_s)
        except frames.FrameError as error:
            # No system takes arguments or programs of that size; to the one who wrote them it is a failed command.
            return ExecResult(126, b"", f"cannot execute: {error}\n".encode(), total_stderr=0)
        try:
            return _result(header, output, max_output)
        except UntrustedReply as error:
            raise self._distrusted(str(error)) from None

    def _distrusted(self, why: str) -> SandboxDied:
        self.connection.close()
        return SandboxDied(f"{self.connection.name}: {why}; discarded")


def _result(header: dict[str, Any], output: bytes, max_output: int) -> ExecResult:
    cut = int_of(header, "stdout")
    stdout, stderr = output[:cut], output[cut:]
    if cut > len(output) or max(len(stdout), len(stderr)) > max_output + _MARK_ROOM:
        raise UntrustedReply(f"{len(output)} bytes of output, {max_output} a stream asked for")
    exit_code = header.get("exit_code")
    if exit_code is not None and (type(exit_code) is not int or not -128 <= exit_code <= 255):
        raise UntrustedReply(f"exit_code is {exit_code!r:.100}")
    start_error = header.get("start_error")
    if start_error:
        return ExecResult(126, b"", f"cannot start: {start_error!s:.200}\n".encode(), duration_s=_duration(header))
    return ExecResult(
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        timed_out=header.get("timed_out") is True,
        truncated=header.get("truncated") is True,
        total_stdout=int_of(header, "total_stdout"),
        total_stderr=int_of(header, "total_stderr"),
        duration_s=_duration(header),
    )


def _duration(header: dict[str, Any]) -> float:
    value = header.get("duration_s")
    if not isinstance(value, (int, float)) or not 0 <= value < 10 * _MAX_TIMEOUT_S:
        raise UntrustedReply(f"duration_s is {value!r:.100}")
    return float(value)


async def greet(handle: Handle, timeout_s: float) -> dict[str, Any]:
    """Await the agent's hello; the connection is closed when it does not come."""
    try:
        return await handle.connection.hello(timeout_s)
    except (SandboxDied, asyncio.CancelledError):
        handle.connection.close()
        raise
