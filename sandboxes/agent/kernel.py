"""The system calls that Python lacks, each as one function that raises OSError."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection

CAP_KILL, CAP_SETGID, CAP_SETUID = 5, 6, 7
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
WALL = 0x40000000
"""wait4 option: children of any clone flavour, those that send no SIGCHLD included."""

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_IPC_RMID = 0

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may read and trace this one."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "PR_SET_DUMPABLE")


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def forbid_new_privileges() -> None:
    """No exec of this process or its children gains anything, for good."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def install_filter(instructions: bytes) -> None:
    """Install a seccomp program (array of struct sock_filter) for this process and all its future children."""
    program = ctypes.create_string_buffer(instructions, len(instructions))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(instructions) // 8, ctypes.addressof(program)))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(header)), 0, 0), "seccomp")


def bound_capabilities(kept: Collection[int]) -> None:
    """Drop all capabilities but these from what any exec could ever give; those held now stay."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        if capability not in kept:
            _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "PR_CAPBSET_DROP")


def hold_capabilities(held: Collection[int]) -> None:
    """Hold these capabilities and no others; none is inheritable."""
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "PR_CAP_AMBIENT_CLEAR_ALL")
    mask = sum(1 << capability for capability in held)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("6I", mask, mask, 0, 0, 0, 0)), "capset")


def set_file_identity(uid: int, gid: int) -> None:
    """The identity used for file access alone: signals and limits still see the process as what it was."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if _libc.setfsuid(-1) != uid or _libc.setfsgid(-1) != gid:
        raise PermissionError(f"cannot access files as {uid}:{gid}")


def set_title(title: bytes) -> None:
    """What process lists show instead of the command line, which must be longer."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    # A last byte that is no NUL tells the kernel that the first string is all there is.
    ctypes.memset(start, 0, end - start)
    ctypes.memset(end - 1, 1, 1)
    ctypes.memmove(start, title, len(title))


def unshare(flags: int) -> None:
    """Leave the given kinds of namespaces for fresh ones."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(descriptor: int, kind: int) -> None:
    """Enter a namespace that a descriptor of /proc/PID/ns refers to."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """Mount a file system that has no source device."""
    _check(_libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode()), f"mount {kind} on {target}")


def remove_system_v_objects() -> None:
    """Remove shared memory, queues and semaphores as far as the effective user may."""
    for kind, remove in (("shm", _libc.shmctl), ("msg", _libc.msgctl)):
        for identifier in _system_v_identifiers(kind):
            remove(identifier, _IPC_RMID, None)
    for identifier in _system_v_identifiers("sem"):
        _libc.semctl(identifier, 0, _IPC_RMID)


def count_system_v_objects() -> int:
    """How many of them exist."""
    return sum(len(_system_v_identifiers(kind)) for kind in ("shm", "msg", "sem"))


def _system_v_identifiers(kind: str) -> list[int]:
    with open(f"/proc/sysvipc/{kind}") as table:
        return [int(line.split()[1]) for line in table.readlines()[1:]]
