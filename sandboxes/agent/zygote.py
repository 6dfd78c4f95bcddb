"""The warm interpreter: forks one child per request, reports how each ended, and touches nothing else.

- It reads neither code nor requests: those travel as descriptors of a memory file that only the child reads.
- It never imports after its start, holds no data of any command, and is alike for each child.
- No workload can signal it: it is root, or the first process of its namespace.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from sandboxes.agent import command, kernel, syscall_filter
from sandboxes.agent.settings import Settings

READY, STARTED, ENDED, RUN, REAP = b"r", b"s", b"e", b"R", b"G"
"""First bytes of messages: the first three from here, the last two to here."""

_PRELOADED = (
    "atexit", "bisect", "collections", "copy", "dataclasses", "datetime", "functools", "heapq", "io", "itertools", "json",
    "linecache", "math", "operator", "random", "re", "string", "textwrap", "traceback", "types", "typing",
)  # fmt: skip
"""Not threading: what it does after each fork costs more than the few programs that use it save."""

_DESCRIPTORS_PER_RUN = 3


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


def serve(control: socket.socket, settings: Settings) -> NoReturn:
    """Answer requests on ``control`` (a SEQPACKET socket) until it closes."""
    kernel.set_dumpable(False)
    kernel.forbid_new_privileges()
    if syscall_filter.supported():
        kernel.install_filter(syscall_filter.program(only_itself=settings.identity is None))
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    runs: dict[int, bytes] = {}
    control.send(READY)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
        if control.fileno() in ready:
            message, descriptors = _receive(control)
            if not message:
                os._exit(0)
            if message[:1] == RUN:
                _fork(control, settings, runs, message[1:], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        _reap(control, runs)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    size = array.array("i").itemsize
    message, ancillary, _, _ = control.recvmsg(64, socket.CMSG_LEN(_DESCRIPTORS_PER_RUN * size))
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % size])
    return message, list(descriptors)


def _fork(control: socket.socket, settings: Settings, runs: dict[int, bytes], run: bytes, descriptors: list[int]) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        control.send(ENDED + json.dumps([int(run), None, error.strerror]).encode())
        return
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            os.setsid()
            control.send(STARTED + run)
            gc.enable()
            command.become_command(settings, *descriptors)
        finally:
            os._exit(125)
    runs[pid] = run


def _reap(control: socket.socket, runs: dict[int, bytes]) -> None:
    # A child made with CLONE_PARENT is ours too; one that called PTRACE_TRACEME reports stops instead of its end.
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | kernel.WALL)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
        elif pid in runs:
            control.send(ENDED + json.dumps([int(runs.pop(pid)), os.waitstatus_to_exitcode(status), ""]).encode())
