"""The sandbox as its user holds it: calls become requests, replies become checked results."""

from __future__ import annotations

import asyncio
import errno
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandboxes.agent import frames
from sandboxes.agent.agent import MAX_OUTPUT
from sandboxes.connection import Connection, UntrustedReply, int_of, seconds
from sandboxes.contract import ExecResult, FileStatus, SandboxDied, SandboxSpec, Usage

_MAX_TIMEOUT_S = 24 * 3600.0
_MARK_ROOM = 64
_MAX_ENTRIES = 100_000


class Handle:
    """A live sandbox behind a connection."""

    def __init__(self, id: str, spec: SandboxSpec, connection: Connection, oom_kills: Callable[[], int] = lambda: 0) -> None:
        """``oom_kills``: how many of its processes were killed for memory, where that is seen from outside alone."""
        self.oom_kills = oom_kills
        self.id = id
        self.spec = spec
        self.connection = connection
        self.usage = Usage()

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
        fields = {"argv": None, **self._common(max_output, env)}
        return await self._run(fields, body, timeout, None)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int = 65536,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        no_output_timeout: float | None = None,
    ) -> ExecResult:
        """See `sandboxes.contract.Sandbox`."""
        fields = {"argv": _argv(command), "cwd": cwd, **self._common(max_output, env)}
        return await self._run(fields, stdin, timeout, no_output_timeout)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        max_output: int = 65536,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> HandleJob:
        """See `sandboxes.contract.Sandbox`."""
        fields = {"argv": _argv(command), "cwd": cwd, **self._common(max_output, env)}
        killed_before = self.oom_kills()
        header, _ = await self.connection.call("start", fields, stdin)
        self.usage.commands += 1
        try:
            return HandleJob(self, int_of(header, "job"), max_output, killed_before)
        except UntrustedReply as error:
            raise self.distrusted(str(error)) from None

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `sandboxes.contract.Sandbox`; OSError (no space, a link, a directory) is the caller's or the workload's doing."""
        await self.connection.call("write_file", {"path": path, "mode": mode}, bytes(data))

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
            raise self.distrusted(f"{len(body)} bytes read, {max_bytes} asked for")
        return body

    async def list_dir(self, path: str = ".", max_entries: int = 10_000) -> list[FileStatus]:
        """See `sandboxes.contract.Sandbox`."""
        if not 0 < max_entries <= _MAX_ENTRIES:
            raise ValueError(f"max_entries is {max_entries}; between 1 and {_MAX_ENTRIES}")
        try:
            _, body = await self.connection.call("list_dir", {"path": path, "max_entries": max_entries})
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ValueError(f"{path}: {error.strerror}") from None
            raise
        try:
            entries = json.loads(body)
            if not isinstance(entries, list) or len(entries) > max_entries:
                raise UntrustedReply(f"a listing of {path!r} that is none")
            return [_file_status(entry) for entry in entries]
        except (ValueError, RecursionError) as error:
            raise self.distrusted(str(error)) from None

    async def stat(self, path: str) -> FileStatus:
        """See `sandboxes.contract.Sandbox`."""
        header, _ = await self.connection.call("stat", {"path": path})
        try:
            return _file_status(header.get("status"))
        except UntrustedReply as error:
            raise self.distrusted(str(error)) from None

    async def ping(self) -> None:
        """One round trip; `SandboxDied` when it fails."""
        await self.connection.call("ping", {})

    async def kill_all(self) -> None:
        """End every process but the sandbox's own; running commands return with exit code -9."""
        header, _ = await self.connection.call("kill_all", {})
        if header.get("killed") is not True:
            raise self.distrusted("processes that can't be killed")

    async def reset(self) -> list[str]:
        """Kill all, wipe every writable place. Returns what is in doubt; an empty list: clean."""
        header, _ = await self.connection.call("reset", {})
        doubts = header.get("doubts")
        if not isinstance(doubts, list):
            return ["reply without a list of doubts"]
        return [str(doubt) for doubt in doubts]

    def distrusted(self, why: str) -> SandboxDied:
        """Close the stream to an agent whose replies make no sense; the error to raise."""
        self.connection.close()
        return SandboxDied(f"{self.connection.name}: {why}; discarded")

    def _common(self, max_output: int, env: Mapping[str, str] | None) -> dict[str, Any]:
        if not 0 < max_output <= MAX_OUTPUT:
            raise ValueError(f"max_output is {max_output}; between 1 and {MAX_OUTPUT} bytes")
        return {"env": {**self.spec.env, **(env or {})}, "max_output": max_output}

    async def _run(self, fields: dict[str, Any], body: bytes, timeout: float, silence: float | None) -> ExecResult:
        limits = {"timeout": _limit(timeout, "timeout")}
        if silence is not None:
            limits["no_output_timeout"] = _limit(silence, "no_output_timeout")
        fields |= {"timeout_s": limits["timeout"], "silence_s": limits.get("no_output_timeout")}
        killed_before = self.oom_kills()
        try:
            header, output = await self.connection.call("run", fields, body, timeout_s=limits["timeout"])
        except frames.FrameError as error:
            # No system takes arguments or programs of that size; to the one who wrote them it is a failed command.
            return ExecResult(126, b"", f"cannot execute: {error}\n".encode(), total_stderr=0)
        try:
            result = result_of(header, output, fields["max_output"], limits)
        except UntrustedReply as error:
            raise self.distrusted(str(error)) from None
        self.usage.commands += 1
        self.usage.command_s += result.duration_s
        self.usage.timeouts += result.timed_out
        return replace(result, oom_killed=True) if self.oom_kills() > killed_before else result


class HandleJob:
    """A `sandboxes.contract.Job` of a handle."""

    def __init__(self, handle: Handle, number: int, max_output: int, killed_before: int) -> None:
        self._killed_before = killed_before
        self._handle = handle
        self._number = number
        self._max_output = max_output

    async def poll(self) -> ExecResult:
        """See `sandboxes.contract.Job`; ProcessLookupError for a job of an episode that is over."""
        return await self._ask("job", 0.0)

    async def wait(self, timeout: float) -> ExecResult:
        """See `sandboxes.contract.Job`."""
        return await self._ask("job", _limit(timeout, "timeout"))

    async def kill(self) -> ExecResult:
        """See `sandboxes.contract.Job`."""
        return await self._ask("kill_job", 0.0)

    async def _ask(self, operation: str, wait_s: float) -> ExecResult:
        fields = {"job": self._number, "wait_s": wait_s}
        header, output = await self._handle.connection.call(operation, fields, timeout_s=wait_s)
        try:
            result = result_of(header, output, self._max_output, {})
        except UntrustedReply as error:
            raise self._handle.distrusted(str(error)) from None
        return replace(result, oom_killed=True) if self._handle.oom_kills() > self._killed_before else result


def _argv(command: str | Sequence[str]) -> list[str]:
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(part) for part in command]
    if not argv:
        raise ValueError("no command")
    return argv


def _limit(value: float, what: str) -> float:
    limit = seconds(value, what)
    if limit > _MAX_TIMEOUT_S:
        raise ValueError(f"{what} is {limit:g} s; at most {_MAX_TIMEOUT_S:g}")
    return limit


def result_of(header: dict[str, Any], output: bytes, max_output: int, limits: Mapping[str, float]) -> ExecResult:
    """A reply as a result, or `UntrustedReply`. ``limits``: those that may have ended the command, by name."""
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
    limit = header.get("limit") or ""
    if limit and limit not in limits:
        raise UntrustedReply(f"limit is {limit!r:.100}")
    return ExecResult(
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        timed_out=bool(limit),
        truncated=header.get("truncated") is True,
        total_stdout=int_of(header, "total_stdout"),
        total_stderr=int_of(header, "total_stderr"),
        duration_s=_duration(header),
        limit=limit,
        limit_s=limits.get(limit, 0.0),
        running=header.get("running") is True,
        oom_killed=header.get("oom_killed") is True,
    )


def _file_status(entry: Any) -> FileStatus:
    if not isinstance(entry, dict):
        raise UntrustedReply("a file's status that is none")
    name, kind, modified = entry.get("name"), entry.get("kind"), entry.get("modified")
    if not isinstance(name, str) or kind not in ("file", "directory", "link", "other"):
        raise UntrustedReply(f"a file called {name!r:.100} of kind {kind!r:.100}")
    if not isinstance(modified, (int, float)) or not math.isfinite(modified):
        raise UntrustedReply(f"modified is {modified!r:.100}")
    return FileStatus(name, kind, int_of(entry, "size"), int_of(entry, "mode"), float(modified))


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
