"""What a sandbox is. Providers prove themselves with `sandboxes.self_check`.

- A command that fails, times out or is killed for memory is a *result*. Only a broken sandbox is an exception.
- After a time-out no process of that command exists, however it forked, detached or ignored signals.
- Output is bytes, bounded, with exact totals and a truncation flag; never decoded here.
- A sandbox given out by the pool is alive and holds nothing of its predecessor.
- Replies of the in-sandbox agent are untrusted data: sizes and types are checked, stale replies are dropped.
- A call that broke off is never repeated by a provider: it may have run.
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


class SandboxImageError(SandboxError):
    """The spec's image can't be had: no such image, a Dockerfile or a setup command that fails. Another attempt fails alike."""


class SandboxUnsupported(SandboxError):
    """The provider can't enforce the spec."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Limits and contents; equal specs share a pool. Sizes in MB, times in seconds.

    ``network``: False is no interface but the loopback; True is the explicit allow for this spec, refused where there is none.
    ``setup``: shell commands that are run once, as root, with a writable system; what they made is kept as an image that every
    sandbox of the spec starts from, /workspace included. ``setup_network`` opens the network for them alone.
    ``read_only``: False lets commands write wherever their user may, and makes every episode start in a new container.
    ``workdir``: where commands start.
    """

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
    workdir: str = "/workspace"
    read_only: bool = True
    setup: tuple[str, ...] = ()
    setup_timeout_s: float = 600.0
    setup_network: bool = False


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did. ``exit_code`` is negative for a signal and None when unknown after a time-out.

    ``oom_killed``: a process of the sandbox was killed for memory meanwhile: the command or a part of it, whatever its exit
    code is then. False where a provider can't tell.
    ``limit`` names the limit that ended it, ``timeout`` or ``no_output_timeout``, ``limit_s`` is that limit's value, and
    ``duration_s`` what was measured. ``running``: a job that goes on; its output so far.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    total_stdout: int = 0
    total_stderr: int = 0
    duration_s: float = 0.0
    limit: str = ""
    limit_s: float = 0.0
    running: bool = False
    oom_killed: bool = False

    @property
    def text(self) -> str:
        """stdout as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """An entry of a directory. ``kind``: file, directory, link or other; ``size``: bytes; ``modified``: seconds since 1970."""

    name: str
    kind: str
    size: int
    mode: int
    modified: float


@dataclass(slots=True)
class Usage:
    """What a sandbox did since it was made; the pool adds these up."""

    commands: int = 0
    command_s: float = 0.0
    timeouts: int = 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider enforces, whether it can make ``setup`` an image (``snapshots``), and whether `Provider.reset` ever
    succeeds (``resets``): without it every episode gets a new sandbox."""

    network_isolated: bool
    memory_limit: bool
    pids_limit: bool
    cpu_limit: bool
    seccomp: bool
    fresh_namespaces: bool
    snapshots: bool = False
    resets: bool = True


class Job(Protocol):
    """A command that goes on while others run. It ends by itself, by a kill, or with the episode."""

    async def poll(self) -> ExecResult:
        """How it stands: its output so far, ``running`` or its end."""
        ...

    async def wait(self, timeout: float) -> ExecResult:
        """Its end, or how it stands after ``timeout`` seconds; it is not ended by that."""
        ...

    async def kill(self) -> ExecResult:
        """End it with everything in its session; its last result."""
        ...


class Sandbox(Protocol):
    """One isolated place: /workspace, /tmp and /dev/shm are writable, and everything else is read-only unless the spec says so.

    They are empty at first, but for what ``setup`` left in /workspace.
    """

    id: str
    spec: SandboxSpec
    usage: Usage

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
        cwd: str | None = None,
        no_output_timeout: float | None = None,
    ) -> ExecResult:
        """Run argv, or a string under ``sh -c``, in ``cwd`` (default and base of relative ones: the spec's ``workdir``).

        What it leaves running ends with it; see `start`. ``no_output_timeout`` ends a command that is silent for so long.
        """
        ...

    async def start(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        max_output: int = 65536,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Job:
        """Start a job, such as a server, and return at once. What of it leaves its session ends with the next command."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write below /workspace or /tmp as the workload's user, not through links."""
        ...

    async def read_file(self, path: str, max_bytes: int = 16 << 20) -> bytes:
        """FileNotFoundError, IsADirectoryError or ValueError (larger than the cap)."""
        ...

    async def list_dir(self, path: str = ".", max_entries: int = 10_000) -> list[FileStatus]:
        """What a directory holds, by name. FileNotFoundError, NotADirectoryError or ValueError (more than the cap)."""
        ...

    async def stat(self, path: str) -> FileStatus:
        """Of a file, directory or link itself; FileNotFoundError."""
        ...

    async def kill_all(self) -> None:
        """End every command and job; they return with exit code -9."""
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

    async def sweep(self) -> int:
        """Remove what dead owners of this host left, and own remains that could not be removed before. Returns how many."""
        ...


class SandboxPool(Protocol):
    """Warm sandboxes per spec."""

    def acquire(
        self, spec: SandboxSpec, *, timeout: float | None = 60.0, first: bool = False
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A clean, live sandbox; on exit it is reset and kept, or destroyed.

        `SandboxUnavailable` after ``timeout`` seconds, None: only when sandboxes can't be started. ``first``: before all who
        did not say so, for short work that others wait for.
        """
        ...

    def acquire_group(
        self, spec: SandboxSpec, count: int, *, timeout: float = 60.0
    ) -> AbstractAsyncContextManager[Sequence[Sandbox]]:
        """``count`` of them, all or none: whoever needs several must not hold some while waiting for the rest."""
        ...

    def metrics(self) -> Mapping[str, float]: ...

    async def close(self) -> None: ...
