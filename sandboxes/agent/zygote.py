"""The warm interpreter: forks one child per request, reports how each ended, and touches nothing else.

- It reads neither code nor requests: those travel as descriptors of a memory file that only the child reads.
- It never imports after its start, holds no data of any command, and is alike for each child.
- No workload can signal it: it is root, or the first process of its namespace.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from typing import NoReturn

from sandboxes.agent import command, kernel, syscall_filter
from sandboxes.agent.settings import Settings

READY, STARTED, ENDED = b"r", b"s", b"e"
"""First bytes of messages from here. STARTED is followed by the run's number, ENDED also by its status or why it has none."""

COLLECT = b"collect"
"""A message to here without descriptors: look for ended children. One with them is a run's number."""

_PRELOADED = (
    "atexit", "bisect", "collections", "copy", "dataclasses", "datetime", "functools", "heapq", "io", "itertools", "json",
    "linecache", "math", "operator", "re", "string", "textwrap", "traceback", "types", "typing",
)  # fmt: skip
"""Not threading and random: what they do after each fork costs more than the few programs that use them save."""

_THREE = struct.Struct("3i")
_ANY_ENDED = os.WNOHANG | kernel.WALL


def preload() -> None:
    """Import what most programs import, and keep the collector away from it."""
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.orig_argv = ["python3"]
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", "") != "__main__"]
    for name in [name for name in sys.modules if name.split(".")[0] == "sandboxes"]:
        del sys.modules[name]
    gc.collect()
    gc.disable()
    gc.freeze()


def filter_of(settings: Settings) -> bytes | None:
    """The system call filter for these settings, None on machines that it does not know."""
    return syscall_filter.program(only_itself=settings.identity is None) if syscall_filter.supported() else None


def serve(control: socket.socket, settings: Settings, filter_program: bytes | None) -> NoReturn:
    """Answer requests on ``control`` (a SEQPACKET socket) until it closes."""
    kernel.set_dumpable(False)
    kernel.forbid_new_privileges()
    if filter_program is not None:
        kernel.install_filter(filter_program)
    poll, control_number = select.poll(), control.fileno()
    poll.register(control_number, select.POLLIN)
    room = socket.CMSG_LEN(_THREE.size)
    runs: dict[int, tuple[bytes, int]] = {}
    control.send(READY)
    # What this loop touches is copied for each child that lives: hence few objects, and none made needlessly.
    while True:
        for ready, _ in poll.poll():
            if ready != control_number:
                continue  # a child ended; it is collected below
            message, ancillary, _, _ = control.recvmsg(64, room)
            if not message:
                os._exit(0)
            if ancillary:
                descriptors = _THREE.unpack(ancillary[0][2])
                _fork(control, settings, poll, runs, message, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
        _collect(control, poll, runs)


def _fork(
    control: socket.socket,
    settings: Settings,
    poll: select.poll,
    runs: dict[int, tuple[bytes, int]],
    run: bytes,
    descriptors: tuple[int, ...],
) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        control.send(ENDED + run + b"  " + str(error.strerror).encode())
        return
    if pid == 0:
        try:
            os.setsid()
            control.send(STARTED + run)
            gc.enable()
            command.become_command(settings, *descriptors)
        finally:
            os._exit(125)
    end = os.pidfd_open(pid)
    poll.register(end, select.POLLIN)
    runs[pid] = run, end


def _collect(control: socket.socket, poll: select.poll, runs: dict[int, tuple[bytes, int]]) -> None:
    # A child made with CLONE_PARENT is ours too; one that called PTRACE_TRACEME reports stops instead of its end.
    while True:
        try:
            pid, status = os.waitpid(-1, _ANY_ENDED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
        elif pid in runs:
            run, end = runs.pop(pid)
            poll.unregister(end)
            os.close(end)
            control.send(b"%s%s %d" % (ENDED, run, os.waitstatus_to_exitcode(status)))
