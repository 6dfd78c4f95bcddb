"""What commands run on: the zygote, the writable places, and how both become clean again.

Two kinds. `InPlace` cleans what is there and compares a canary; `Namespaces` replaces everything by fresh namespaces.
Either is given up, never repaired: a reset that isn't certain says why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
import time
from collections.abc import Sequence

from sandboxes.agent import canary, kernel, namespaces, zygote
from sandboxes.agent.places import Places, populate, wipe
from sandboxes.agent.processes import Processes
from sandboxes.agent.program import Program
from sandboxes.agent.settings import Settings

_START_S = 30.0
_FREED_S = 1.0
"""How long the kernel may take to free sockets that were left in each other's queues; it does so in its own time."""
_LOOK_AGAIN_S = 0.005
_CREDENTIALS = struct.Struct("3i")
_PSEUDO_FILE_SYSTEMS = {"proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs", "securityfs"}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class GroundLost(Exception):
    """The zygote is gone or does not answer: the sandbox can't go on."""


class Ground:
    """Common part: start a warm interpreter, hand it requests, read its messages."""

    control: socket.socket
    places: Places

    def __init__(self, settings: Settings, program: Program) -> None:
        self.settings = settings
        self._program = program
        self.processes = Processes(self._prod)

    def fork(self, run: int, request: int, stdout: int, stderr: int) -> None:
        """Have a child forked for ``run``."""
        try:
            socket.send_fds(self.control, [b"%d" % run], [request, stdout, stderr])
        except OSError as error:
            raise GroundLost(f"zygote: {error}") from None

    def receive(self) -> tuple[bytes, int]:
        """One message of the zygote or its child, and the sender's process id as seen from here."""
        size = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            message, ancillary, _, _ = self.control.recvmsg(4096, size)
        except OSError as error:
            raise GroundLost(f"zygote: {error}") from None
        if not message:
            raise GroundLost("zygote: ended")
        sender = next((_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS), 0)
        return message, sender

    def reset(self) -> list[str]:
        """Make it clean. Returns what is left in doubt: nothing, or the sandbox is to be destroyed."""
        raise NotImplementedError

    def _spawn(self, role: str) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._program.spawn(role, theirs, self.settings, self._environment())
        theirs.close()
        ours.settimeout(_START_S)
        self.processes.spared.add(pid)
        self._expect(ours, zygote.READY)
        return pid, ours

    def _environment(self) -> dict[str, str]:
        """Of the zygote, hence of commands: an image's own variables, but nothing of the user who runs us unprotected."""
        inherited = os.environ if self.processes.whole_namespace else {"PATH": os.environ.get("PATH", os.defpath)}
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **{name: value for name, value in inherited.items() if not name.startswith(("LD_", "PYTHON"))},
            "HOME": next(iter(self.settings.places.values())),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }

    @staticmethod
    def _expect(control: socket.socket, kind: bytes) -> bytes:
        try:
            message = control.recv(4096)
        except OSError as error:
            raise GroundLost(f"zygote: {error}") from None
        if message[:1] != kind:
            raise GroundLost(f"zygote: {message[1:].decode(errors='replace') or 'ended'}")
        return message[1:]

    def _prod(self) -> None:
        with contextlib.suppress(OSError):
            self.control.send(zygote.COLLECT)


class InPlace(Ground):
    """One zygote for all episodes; a reset kills, wipes, copies the template anew and compares."""

    def __init__(self, settings: Settings, program: Program) -> None:
        super().__init__(settings, program)
        directories = {known: os.open(real, _DIRECTORY) for known, real in settings.places.items()}
        self._wiped = [directory for known, directory in directories.items() if known not in settings.kept]
        if settings.identity is not None:
            # Engines may give a mount the mode of the directory beneath it.
            for directory in self._wiped:
                os.fchmod(directory, 0o1777)
        self.places = Places(directories, settings.identity)
        pid, self.control = self._spawn("zygote")
        _show_senders(self.control)
        self._own = [os.getpid(), pid]
        self._unknown = unknown_writable_mounts(settings) if self.processes.whole_namespace else []
        self._clean()
        self._baseline = self._observe()

    def reset(self) -> list[str]:
        """Kill all, wipe the places, remove IPC objects, compare with the first day."""
        if not self.processes.kill():
            return ["processes that can't be killed"]
        if self._unknown:
            return [f"writable mount {path}" for path in self._unknown]
        self._clean()
        return self._left()

    def _left(self) -> list[str]:
        deadline = time.monotonic() + _FREED_S
        while True:
            left = canary.differences(self._baseline, self._observe())
            if not left or not canary.FREED_LATE.issuperset(left) or time.monotonic() > deadline:
                return left
            for end in socket.socketpair():
                end.close()  # whenever a socket closes, the kernel looks for those that only hold each other
            time.sleep(_LOOK_AGAIN_S)

    def _clean(self) -> None:
        with self.places.as_workload():
            for directory in self._wiped:
                wipe(directory)
            if self.settings.template:
                populate(self._wiped[0], self.settings.template)
        if self.settings.identity is not None and kernel.count_system_v_objects():
            # Removal looks at the effective user; no process of the workload is left that could use the moment.
            os.seteuid(self.settings.identity[0])
            kernel.remove_system_v_objects()
            os.seteuid(0)

    def _observe(self) -> dict[str, object]:
        seen = canary.observe(self.places.descriptors, self._own, self.processes.others())
        if self.processes.whole_namespace:
            seen.update(canary.observe_kernel(self.places.descriptors))
        return seen


class Namespaces(Ground):
    """Fresh namespaces for each episode."""

    def __init__(self, settings: Settings, program: Program) -> None:
        super().__init__(settings, program)
        _, self._opener = self._spawn("namespaces")
        self._zygote = 0
        self._open()

    def reset(self) -> list[str]:
        """Replace the episode's namespaces; what the old ones held is gone with them."""
        self.control.close()
        self.places.close()
        os.kill(self._zygote, signal.SIGKILL)
        self.processes.spared.discard(self._zygote)
        self._open()
        left = self.processes.others()
        return [f"processes {left}"] if left else []

    def _open(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self._opener, [b"episode"], [theirs.fileno()])
        theirs.close()
        self.control.settimeout(_START_S)
        answer = self._opener.recv(4096)
        if not answer.isdigit():
            raise GroundLost(f"no episode: {answer[1:].decode(errors='replace')}")
        self._zygote = int(answer)
        self.processes.spared.add(self._zygote)
        self.places = Places(dict(zip(self.settings.places, self._receive_places())), self.settings.identity)  # noqa: B905
        self._expect(self.control, zygote.READY)
        _show_senders(self.control)

    def _receive_places(self) -> Sequence[int]:
        message, descriptors, _, _ = socket.recv_fds(self.control, 4096, len(self.settings.places))
        if message != namespaces.PLACES:
            raise GroundLost(f"no episode: {message[1:].decode(errors='replace')}")
        return descriptors


def unknown_writable_mounts(settings: Settings) -> list[str]:
    """Mounts, such as an image's volumes, in which a workload could leave something that no reset wipes."""
    found = []
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        for line in table:
            before, _, after = line.partition(" - ")
            path, options, kind = before.split()[4], before.split()[5].split(","), after.split()[0]
            if "rw" not in options or kind in _PSEUDO_FILE_SYSTEMS or path in settings.places.values():
                continue
            status = os.stat(path)
            if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                continue  # a device hides something
            open_to_all = bool(status.st_mode & stat.S_IWOTH)
            own = settings.identity is not None and status.st_uid == settings.identity[0]
            # A fresh tmpfs is as closed as its top; what lies deep inside of a disk is anybody's guess.
            if open_to_all or own or (kind != "tmpfs" and stat.S_ISDIR(status.st_mode)):
                found.append(path)
    return found


def _show_senders(control: socket.socket) -> None:
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
