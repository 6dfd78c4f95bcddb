"""Sandboxes without a container engine: bubblewrap over the host's own system, read-only, or over a root directory.

- Nothing of the host is visible but its programs and libraries: no home, no /var, no /etc beyond what programs need.
- Every episode gets fresh namespaces and file systems (`sandboxes.agent.namespaces`).
- As root the workload is uid 1000 on the host; without root it is the caller's user in a user namespace, unable to see
  anything of that user. Memory, process and CPU limits need writable control groups; without them each process is limited.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import resource
import shutil
import socket
import subprocess
from functools import partial
from pathlib import Path

from sandboxes import bundle, cgroups
from sandboxes.agent import syscall_filter
from sandboxes.agent.settings import NAMESPACES, Settings
from sandboxes.connection import Connection
from sandboxes.contract import Capabilities, Sandbox, SandboxDied, SandboxSpec, SandboxUnavailable, SandboxUnsupported
from sandboxes.handle import Handle, greet
from sandboxes.interpreter import Interpreter, find_interpreter
from sandboxes.limits import check_enforceable, command_limits, tmpfs_options

HOST_IMAGE = "agentrl-base"
"""The image name that stands for the host's own system; an absolute path is a root directory."""

_START_S = 30.0
_SYSTEM = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/share")
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_CONFIGURATION = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_PASSWD = b"root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/workspace:/bin/sh\n"
_GROUP = b"root:x:0:\nsandbox:x:1000:\n"
_WORKLOAD = (1000, 1000)
_PLACES = ("/workspace", "/tmp", "/dev/shm")
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SYS_ADMIN", "CAP_SETPCAP")
_CAPABILITY_TO_MAP = "CAP_SETFCAP"
"""Since Linux 5.12, for a namespace in which our user 0 appears as another."""
_JOIN_GROUPS = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit 1; shift; n=$((n-1)); done; exec "$@"'
"""Enters the control groups given as count and files, then becomes the rest of its arguments."""


class Bubblewrap:
    """A provider; see the module."""

    name = "bubblewrap"

    def __init__(self) -> None:
        """`SandboxUnavailable` when bwrap or a usable Python is missing."""
        executable = shutil.which("bwrap")
        if executable is None:
            raise SandboxUnavailable("bubblewrap is not installed (as root: scripts/install-bubblewrap.sh)")
        self._bwrap = executable
        self._root = os.geteuid() == 0
        self._interpreter = find_interpreter()
        self._groups = cgroups.ControlGroups()
        self._groups.sweep()
        self._processes: dict[str, tuple[subprocess.Popen[bytes], list[Path]]] = {}
        self._numbers = itertools.count()
        enforced = self._groups.enforced
        self.capabilities = Capabilities(
            network_isolated=True,
            memory_limit="memory" in enforced,
            pids_limit="pids" in enforced or not self._root,
            cpu_limit="cpu" in enforced,
            seccomp=syscall_filter.supported(),
            fresh_namespaces=True,
        )

    @property
    def description(self) -> str:
        """What is used, for people."""
        limits = ", ".join(name for name in cgroups.CONTROLLERS if name in self._groups.enforced)
        how = f"control groups limit {limits}" if limits else "no writable control groups: limits are per process"
        return f"{self._bwrap}, Python {'.'.join(map(str, self._interpreter.version))} of the host; {how}"

    async def create(self, spec: SandboxSpec) -> Handle:
        """See `sandboxes.contract.Provider`."""
        check_enforceable(spec, self)
        if not spec.read_only:
            raise SandboxUnsupported("bubblewrap's system is the host's own and stays read-only; use docker for this spec")
        if spec.network:
            raise SandboxUnsupported("bubblewrap has no network of its own to open; use docker for specs with network")
        if spec.image != HOST_IMAGE and not Path(spec.image).is_dir():
            raise SandboxUnsupported(f"bubblewrap has no image {spec.image!r}; it takes {HOST_IMAGE!r} or a root directory")
        name = f"bubblewrap-{os.getpid()}-{next(self._numbers)}"
        ours, theirs = socket.socketpair()
        groups = await asyncio.to_thread(self._groups.create, spec)
        try:
            # From this thread: --die-with-parent watches the thread that starts the process.
            process = self._start(spec, groups, theirs)
        finally:
            theirs.close()
        self._processes[name] = process, groups
        try:
            _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(name), sock=ours)
            handle = Handle(name, spec, connection, partial(cgroups.oom_kills, groups))
            await greet(handle, _START_S)
        except SandboxDied as error:
            complaint = await asyncio.to_thread(self._complaint, process)
            await self._end(name)
            raise SandboxUnavailable(f"bubblewrap did not start: {complaint or error}") from None
        except asyncio.CancelledError:
            await asyncio.shield(self._end(name))
            raise
        return handle

    async def reset(self, sandbox: Sandbox) -> bool:
        """See `sandboxes.contract.Provider`."""
        assert isinstance(sandbox, Handle)
        return not await sandbox.reset()

    async def destroy(self, sandbox: Sandbox) -> None:
        """See `sandboxes.contract.Provider`."""
        assert isinstance(sandbox, Handle)
        sandbox.connection.close()
        await asyncio.shield(self._end(sandbox.id))

    async def digest(self, spec: SandboxSpec) -> str:
        """Of the program inside, the interpreter, the system release and the root."""
        release = Path("/etc/os-release")
        parts = [bundle.digest(), repr(self._interpreter), spec.image, release.read_text() if release.exists() else ""]
        return "sha256:" + hashlib.sha256("\0".join(parts).encode()).hexdigest()

    async def sweep(self) -> int:
        """Remove control groups of dead owners; their processes ended with them."""
        return await asyncio.to_thread(self._groups.sweep)

    def _start(self, spec: SandboxSpec, groups: list[Path], stream: socket.socket) -> subprocess.Popen[bytes]:
        command = [self._bwrap, *self._arguments(spec), "--", self._interpreter.executable, "-u", "-I", "-S", "-c"]
        command += [bundle.program(), "agent", self._settings(spec).to_json()]
        if groups:
            joins = [str(group / "cgroup.procs") for group in groups]
            command = ["/bin/sh", "-c", _JOIN_GROUPS, "sh", str(len(joins)), *joins, *command]
        passwd, group = _memory_file(_PASSWD), _memory_file(_GROUP)
        names = {"{passwd}": str(passwd), "{group}": str(group)}
        try:
            return subprocess.Popen(
                [names.get(part, part) for part in command],
                stdin=stream.fileno(),
                stdout=stream.fileno(),
                stderr=subprocess.PIPE,
                pass_fds=(passwd, group),
                start_new_session=True,
            )
        finally:
            os.close(passwd)
            os.close(group)

    def _arguments(self, spec: SandboxSpec) -> list[str]:
        arguments = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        arguments += ["--as-pid-1", "--die-with-parent", "--hostname", "sandbox", "--clearenv"]
        if not self._root:
            arguments += ["--unshare-user", "--uid", "0", "--gid", "0"]
        arguments += ["--cap-drop", "ALL"]
        for capability in _CAPABILITIES if self._root else (*_CAPABILITIES, _CAPABILITY_TO_MAP):
            arguments += ["--cap-add", capability]
        if spec.image == HOST_IMAGE:
            arguments += _host_system(self._interpreter)
        else:
            arguments += ["--ro-bind", spec.image, "/"]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--dir", "/workspace", "--dir", "/tmp"]
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace"]

    def _settings(self, spec: SandboxSpec) -> Settings:
        limits = command_limits(spec)
        if not self.capabilities.memory_limit:
            limits[resource.RLIMIT_AS] = spec.memory_mb << 20
        if "pids" not in self._groups.enforced and not self._root:
            # Counted per user namespace, which is the sandbox's own.
            limits[resource.RLIMIT_NPROC] = spec.pids
        return Settings(
            reset=NAMESPACES,
            places={place: place for place in _PLACES},
            workdir=spec.workdir,
            mounts=tmpfs_options(spec),
            identity=_WORKLOAD if self._root else None,
            seen_as=None if self._root else _WORKLOAD,
            limits=limits,
            ttl_s=spec.ttl_s,
            idle_s=spec.idle_s,
        )

    @staticmethod
    def _complaint(process: subprocess.Popen[bytes]) -> str:
        process.kill()
        _, errors = process.communicate(timeout=10)
        return errors.decode(errors="replace").strip()[-1000:]

    async def _end(self, name: str) -> None:
        process, groups = self._processes.pop(name, (None, []))
        if process is not None:
            await asyncio.to_thread(_end, process, groups)


def _end(process: subprocess.Popen[bytes], groups: list[Path]) -> None:
    process.kill()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()
    cgroups.remove(groups)


def _host_system(interpreter: Interpreter) -> list[str]:
    arguments = _directory("/usr") + _directory("/etc")
    for directory in _SYSTEM:
        if Path(directory).is_dir():
            arguments += ["--ro-bind", directory, directory]
    for directory in _LINKED:
        path = Path(directory)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), directory]
        elif path.is_dir():
            arguments += ["--ro-bind", directory, directory]
    if interpreter.prefix != "/usr":
        # Parents made on the way would be closed to all but root.
        for parent in reversed(Path(interpreter.prefix).parents[:-1]):
            arguments += _directory(str(parent))
        arguments += ["--ro-bind", interpreter.prefix, interpreter.prefix]
    for directory in interpreter.packages:
        arguments += ["--tmpfs", directory, "--remount-ro", directory]
    for path_name in _CONFIGURATION:
        arguments += ["--ro-bind-try", path_name, path_name]
    return [*arguments, "--ro-bind-data", "{passwd}", "/etc/passwd", "--ro-bind-data", "{group}", "/etc/group"]


def _directory(path: str) -> list[str]:
    return ["--perms", "0755", "--dir", path]


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("file")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
