"""What must be the same before each episode; any difference means that something of an episode is left.

Reading it costs a fraction of a millisecond. /proc/net/tcp is left out for that reason: /proc/net/sockstat counts the same.
"""

from __future__ import annotations

import os
from typing import Any

from sandboxes.agent import kernel

FREED_LATE = frozenset({"sockets", "unix sockets"})
"""What the kernel may free some time after the last process that had it is gone."""


def observe(places: dict[str, int], own: list[int], others: list[int]) -> dict[str, Any]:
    """State of the writable places, of our own processes ``own``, and the other processes."""
    return {
        "processes": others,
        "descriptors": len(os.listdir("/proc/self/fd")),
        **{f"place {path}": _place(descriptor) for path, descriptor in places.items()},
        **{f"process {pid}": _process(pid) for pid in own},
    }


def observe_kernel(places: dict[str, int]) -> dict[str, Any]:
    """State of what an isolated sandbox has to itself: mounts, IPC objects, network, blocks and inodes in use."""
    return {
        "mounts": _read("/proc/self/mountinfo"),
        "ipc objects": kernel.count_system_v_objects(),
        "unix sockets": _read("/proc/net/unix").count("\n"),
        "sockets": [line for line in _read("/proc/net/sockstat").splitlines() if not line.startswith("TCP")],
        "locks": _count_locks(_read("/proc/locks")),
        **{f"use of {path}": _use(descriptor) for path, descriptor in places.items()},
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what differs."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _count_locks(table: str) -> int:
    # Locks of open files, whose process is -1, are shown to everybody: those of the whole host would be counted.
    return sum(int(line.replace("->", " ").split()[4]) > 0 for line in table.splitlines())


def _place(descriptor: int) -> list[Any]:
    status = os.fstat(descriptor)
    return [sorted(os.listdir(descriptor)), status.st_mode, status.st_uid, sorted(os.listxattr(descriptor))]


def _use(descriptor: int) -> list[int]:
    volume = os.fstatvfs(descriptor)
    return [volume.f_files - volume.f_ffree, volume.f_blocks - volume.f_bfree]


def _process(pid: int) -> list[Any]:
    return [
        _read(f"/proc/{pid}/limits"),
        os.getpriority(os.PRIO_PROCESS, pid),
        sorted(os.sched_getaffinity(pid)),
        os.sched_getscheduler(pid),
    ]


def _read(path: str) -> str:
    with open(path, errors="surrogateescape") as file:
        return file.read()
