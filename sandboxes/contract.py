"""What a sandbox is. Providers prove themselves with `sandboxes.self_check`.

- A command that fails, times out or is killed for memory is a *result*. Only a broken sandbox is an exception.
- After a time-out no process of that command exists, however it forked, detached or ignored signals.
- Output is bytes, bounded, with exact totals and a truncation flag; never decoded here.
- A sandbox given out by the pool is alive and holds nothing of its predecessor.
- Replies of the in-sandbox agent are untrusted data: sizes and types are checked, stale replies are dropped.
- A spec that a provider can't enforce is refused (`SandboxUnsupported`), never weakened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


class SandboxError(Exception):
    """Base of infrastructure failures of sandboxes. The message names provider, container and what to do."""


class SandboxUnavailable(SandboxError):
    """None could be created or had in time; retryable."""


class SandboxDied(SandboxError):
    """It broke while in use; what it was doing has an unknown outcome and must not be repeated blindly."""


class SandboxUnsupported(SandboxError):
    """The provider can't enforce the spec."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Limits and contents; equal specs share a pool. Sizes in MB, times in seconds."""

    image: str = "agentrl-base"
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: float = 1.0
    memory_mb: int = 512
    pids: int = 128
    workspace_mb: int = 64
    tmp_mb: int = 64
    shm_mb: int = 16
    network: bool = False
    ttl_s: float = 3600.0
    idle_s: float = 900.0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did. ``exit_code`` is negative for a signal and None when unknown after a time-out."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    total_stdout: int = 0
    total_stderr: int = 0
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """stdout as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider enforces."""

    network_isolated: bool
    memory_limit: bool
    pids_limit: bool
    cpu_limit: bool
    seccomp: bool
    fresh_namespaces: bool


class Sandbox(Protocol):
    """One isolated place: /workspace, /tmp and /dev/shm are writable and empty, everything else is read-only."""

    id: str
    spec: SandboxSpec

    async def run_python(
        self, code: str | bytes, *, timeout: float = 10.0, max_output: int = 65536, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        """Run code as ``__main__`` in a child forked from a warm interpreter (milliseconds), cwd /workspace."""
        ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int = 65536,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run argv, or a string under ``sh -c``; cwd /workspace."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Write below /workspace or /tmp as the workload's user, not through links."""
        ...

    async def read_file(self, path: str, max_bytes: int = 16 << 20) -> bytes:
        """FileNotFoundError, IsADirectoryError or ValueError (larger than the cap)."""
        ...

    async def ping(self) -> None:
        """One round trip; `SandboxDied` when it fails."""
        ...


class Provider(Protocol):
    """Makes sandboxes of one kind."""

    name: str
    capabilities: Capabilities

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def reset(self, sandbox: Sandbox) -> bool:
        """Kill all, wipe every writable place, check the canary. False: in doubt, destroy it."""
        ...

    async def destroy(self, sandbox: Sandbox) -> None: ...

    async def digest(self, spec: SandboxSpec) -> str:
        """Identity of what the sandbox is made from; stored with each trajectory."""
        ...


class SandboxPool(Protocol):
    """Warm sandboxes per spec."""

    def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0) -> AbstractAsyncContextManager[Sandbox]:
        """A clean, live sandbox; on exit it is reset and kept, or destroyed. `SandboxUnavailable` after ``timeout``."""
        ...

    def metrics(self) -> Mapping[str, float]: ...

    async def close(self) -> None: ...
