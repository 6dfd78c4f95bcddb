"""No isolation: the agent as a plain process of this user in a temporary directory. For explicit requests only.

Time-outs, bounded output and the reset of the temporary directory hold; nothing keeps the code from the user's files, the
network, or memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from sandboxes import bundle
from sandboxes.agent.settings import IN_PLACE, Settings
from sandboxes.connection import Connection
from sandboxes.contract import Capabilities, Sandbox, SandboxDied, SandboxSpec, SandboxUnavailable
from sandboxes.handle import Handle, greet
from sandboxes.limits import check_enforceable
from sandboxes.ownership import Owner

_START_S = 30.0
_END_S = 10.0


class UnsafeLocal:
    """A provider; see the module. ``/workspace`` and ``/tmp`` of the file calls are directories below a temporary one."""

    name = "local"
    capabilities = Capabilities(
        network_isolated=False,
        memory_limit=False,
        pids_limit=False,
        cpu_limit=False,
        seccomp=False,
        fresh_namespaces=False,
    )

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._processes: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    async def create(self, spec: SandboxSpec) -> Handle:
        """See `sandboxes.contract.Provider`."""
        check_enforceable(spec, self)
        name = f"local-{os.getpid()}-{next(self._numbers)}"
        directory = tempfile.mkdtemp(prefix=Owner.current().prefix)
        places = {place: f"{directory}{place}" for place in ("/workspace", "/tmp")}
        for path in places.values():
            Path(path).mkdir()
        settings = Settings(
            reset=IN_PLACE,
            places=places,
            workdir=spec.workdir,
            identity=None,
            limits={resource.RLIMIT_CORE: 0},
            environment={"TMPDIR": places["/tmp"]},
            ttl_s=spec.ttl_s,
            idle_s=spec.idle_s,
        )
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-I", "-S", "-c", bundle.program(), "agent", settings.to_json()]
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
        self._processes[name] = process, directory
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(name), sock=ours)
        handle = Handle(name, spec, connection)
        try:
            await greet(handle, _START_S)
        except SandboxDied as error:
            await self.destroy(handle)
            raise SandboxUnavailable(f"local process did not start: {error}") from None
        except asyncio.CancelledError:
            await self.destroy(handle)
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
        process, directory = self._processes.pop(sandbox.id, (None, ""))
        if process is not None:
            await asyncio.shield(asyncio.to_thread(_end, process, directory))

    async def digest(self, spec: SandboxSpec) -> str:
        """Of the program inside and the interpreter: nothing else is known."""
        return f"unsafe-local:{bundle.digest()[:16]}:{sys.version.split()[0]}"

    async def sweep(self) -> int:
        """Remove the directories of dead owners; their processes ended with them."""
        return await asyncio.to_thread(_sweep)


def _sweep() -> int:
    removed = 0
    for path in Path(tempfile.gettempdir()).iterdir():
        owner = Owner.parse(path.name)
        if owner is not None and owner.certainly_dead():
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed


def _end(process: subprocess.Popen[bytes], directory: str) -> None:
    # At the end of its stream the agent ends its commands, then itself.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_END_S)
    process.kill()
    process.wait()
    shutil.rmtree(directory, ignore_errors=True)
