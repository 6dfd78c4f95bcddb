"""A sandbox that is taken from the pool at its first use, so that an episode that only thinks or reads holds none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from sandboxes.contract import ExecResult, FileStatus, Job, Sandbox, SandboxPool, SandboxSpec, Usage


class LazySandbox:
    """A `Sandbox` whose first call acquires a real one. ``release`` gives it back; later calls acquire a fresh one."""

    def __init__(self, pool: SandboxPool, spec: SandboxSpec) -> None:
        self.id = "none yet"
        self.spec = spec
        self.usage = Usage()
        self._pool = pool
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox | None = None

    async def release(self) -> None:
        """Give the sandbox back to the pool, if one was taken."""
        self._sandbox = None
        await self._stack.aclose()

    async def run_python(
        self, code: str | bytes, *, timeout: float = 10.0, max_output: int = 65536, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        return await (await self._get()).run_python(code, timeout=timeout, max_output=max_output, env=env)

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
        sandbox = await self._get()
        return await sandbox.exec(
            command,
            stdin=stdin,
            timeout=timeout,
            max_output=max_output,
            env=env,
            cwd=cwd,
            no_output_timeout=no_output_timeout,
        )

    async def start(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        max_output: int = 65536,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Job:
        return await (await self._get()).start(command, stdin=stdin, max_output=max_output, env=env, cwd=cwd)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await (await self._get()).write_file(path, data, mode=mode)

    async def read_file(self, path: str, max_bytes: int = 16 << 20) -> bytes:
        return await (await self._get()).read_file(path, max_bytes)

    async def list_dir(self, path: str = ".", max_entries: int = 10_000) -> list[FileStatus]:
        return await (await self._get()).list_dir(path, max_entries)

    async def stat(self, path: str) -> FileStatus:
        return await (await self._get()).stat(path)

    async def kill_all(self) -> None:
        await (await self._get()).kill_all()

    async def ping(self) -> None:
        await (await self._get()).ping()

    async def _get(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = await self._stack.enter_async_context(self._pool.acquire(self.spec))
            self.id, self.usage = self._sandbox.id, self._sandbox.usage
        return self._sandbox
