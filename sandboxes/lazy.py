"""Sandboxes that are taken from the pool at their first use, so that an episode that only thinks or reads holds none.

Invariants, each with a test of the same name:

- no_hold_and_wait: an episode with several sandboxes takes all at the first use of any, and only one such episode of a
  `SandboxQueue` at a time waits for its next one; so two never hold what the other waits for.
- nothing_is_kept: a failed or cancelled acquisition gives back what it had got, and so does one that ends after the set was
  closed: a task that outlives its episode holds nothing.
- graders_are_first: who reserves as first waits only for others who did, and for one set that is being taken.
- busy_is_not_broken: who waits for sandboxes that others use waits as long as it takes; only starts that fail are a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext

from sandboxes.contract import ExecResult, FileStatus, Job, Sandbox, SandboxError, SandboxPool, SandboxSpec, Usage

Waiting = Callable[[], AbstractContextManager[None]]
"""Entered while a sandbox is waited for, so that the wait can be told from the work."""


class SandboxQueue:
    """Hands out sets of lazy sandboxes of one pool. ``waiting`` surrounds each wait."""

    def __init__(self, pool: SandboxPool, waiting: Waiting = nullcontext) -> None:
        self._pool = pool
        self._waiting = waiting
        self._turns = Turns()

    def reserve(self, specs: Mapping[str, SandboxSpec], *, first: bool = False) -> SandboxSet:
        """A set with one sandbox a name; none is taken yet. ``first``: see `sandboxes.contract.SandboxPool.acquire`."""
        return SandboxSet(self._pool, specs, self._waiting, self._turns, first)


class Turns:
    """One at a time; of those who wait, those who are first before the others."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._others = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, first: bool) -> AsyncIterator[None]:
        # Only one of the others stands at the lock itself at any time.
        async with nullcontext() if first else self._others, self._lock:
            yield


class SandboxSet:
    """The sandboxes of one episode by name."""

    def __init__(
        self, pool: SandboxPool, specs: Mapping[str, SandboxSpec], waiting: Waiting, turns: Turns, first: bool
    ) -> None:
        self._pool = pool
        self._specs = dict(specs)
        self._waiting = waiting
        self._turns = turns
        self._first = first
        self._closed = False
        self._taking = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._taken: dict[str, Sandbox] = {}
        self.boxes: Mapping[str, LazySandbox] = {name: LazySandbox(self, name, spec) for name, spec in self._specs.items()}

    async def get(self, name: str) -> Sandbox:
        """The real sandbox of that name; at first use, and after a `release`, all of the set are acquired.

        `SandboxError` after `close`.
        """
        if name not in self._taken:
            with self._waiting():
                async with self._taking:
                    if name not in self._taken:
                        await self._take_all()
        return self._taken[name]

    async def release(self) -> None:
        """Give back to the pool what was taken; the next use takes others."""
        stack, self._stack, self._taken = self._stack, AsyncExitStack(), {}
        await stack.aclose()

    async def close(self) -> None:
        """Give back what was taken, for good: what is being taken is given back as soon as it comes."""
        self._closed = True
        await self.release()

    async def _take_all(self) -> None:
        self._check_open()
        taken: dict[str, Sandbox] = {}
        async with AsyncExitStack() as stack:
            async with self._turns.turn(self._first) if len(self._specs) > 1 else nullcontext():
                for name, spec in self._specs.items():
                    taken[name] = await stack.enter_async_context(self._pool.acquire(spec, timeout=None, first=self._first))
            self._check_open()
            self._taken, self._stack = taken, stack.pop_all()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is used after its episode: await what a tool starts before the tool returns")


class LazySandbox:
    """A `Sandbox` whose first call acquires a real one."""

    def __init__(self, origin: SandboxSet, name: str, spec: SandboxSpec) -> None:
        self.id = "none yet"
        self.spec = spec
        self.usage = Usage()
        self._origin = origin
        self._name = name

    async def renew(self) -> None:
        """Give the sandbox, and the others of its set, back to the pool: the next call gets a clean one."""
        await self._origin.release()

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
        sandbox = await self._origin.get(self._name)
        self.id, self.usage = sandbox.id, sandbox.usage
        return sandbox
