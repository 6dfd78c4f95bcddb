"""The deny list of system calls that workloads have no use for, as a seccomp program.

On top of whatever the container engine installs: key rings outlive an episode and cross sandboxes, io_uring escapes
other filters, namespaces and mounts widen the kernel's surface. Denied calls fail with EPERM; clone3, whose flags a
filter can't see, with ENOSYS so that the C library falls back to clone.
"""

from __future__ import annotations

import errno
import platform
import struct

_NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEW* of clone(2), CLONE_NEWTIME included."""

_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENT_0 = 0, 4, 16
_X32_BIT = 0x40000000

_DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
}  # fmt: skip
_DENIED = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "uselib": 134, "pivot_root": 155, "chroot": 161, "acct": 163, "mount": 165,
        "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
        "delete_module": 176, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
        "move_pages": 279, "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313, "kexec_file_load": 320, "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "acct": 89, "unshare": 97, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117, "reboot": 142, "add_key": 217,
        "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "move_pages": 239, "perf_event_open": 241,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_TARGETS_OTHERS = {
    "x86_64": {"setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203,
               "prlimit64": 302, "sched_setattr": 314},
    "aarch64": {"sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140,
                "prlimit64": 261, "sched_setattr": 274},
}  # fmt: skip
"""Calls by which a process changes another of the same user."""


def supported(machine: str | None = None) -> bool:
    """Whether the filter knows this machine's system call numbers."""
    return (machine or platform.machine()) in _DENIED


def program(machine: str | None = None, *, only_itself: bool = False) -> bytes:
    """The filter for a machine (default: this one), as an array of struct sock_filter.

    ``only_itself`` also denies changing limits, priority and scheduling of any process but the caller: needed where the
    zygote runs as the workload's user.
    """
    machine = machine or platform.machine()
    code = [
        _instruction(_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        _instruction(_JUMP_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        _instruction(_RETURN, 0, 0, _KILL_PROCESS),
        _instruction(_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        code += [_instruction(_JUMP_AT_LEAST, 0, 1, _X32_BIT), _instruction(_RETURN, 0, 0, _KILL_PROCESS)]
    for number in sorted({*_DENIED[machine].values(), *_DENIED_EVERYWHERE.values()}):
        code += _refuse(number, errno.EPERM)
    code += _refuse(_CLONE3, errno.ENOSYS)
    code += [
        _instruction(_JUMP_EQUAL, 0, 4, _CLONE[machine]),
        _instruction(_LOAD, 0, 0, _OFFSET_ARGUMENT_0),
        _instruction(_JUMP_ANY_BIT, 0, 1, _NAMESPACE_FLAGS),
        _instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM),
        _instruction(_RETURN, 0, 0, _ALLOW),
    ]
    if only_itself:
        code += _refuse_for_others(_TARGETS_OTHERS[machine])
    return b"".join([*code, _instruction(_RETURN, 0, 0, _ALLOW)])


def _refuse(number: int, error: int) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, 0, 1, number), _instruction(_RETURN, 0, 0, _ERRNO | error)]


def _refuse_for_others(calls: dict[str, int]) -> list[bytes]:
    # setpriority(which, who, ...) names its target second; all others first.
    code = []
    for name, number in calls.items():
        argument = _OFFSET_ARGUMENT_0 + (8 if name == "setpriority" else 0)
        code += [
            _instruction(_JUMP_EQUAL, 0, 4, number),
            _instruction(_LOAD, 0, 0, argument),
            _instruction(_JUMP_EQUAL, 1, 0, 0),
            _instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM),
            _instruction(_RETURN, 0, 0, _ALLOW),
        ]
    return code


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
