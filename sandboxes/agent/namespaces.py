"""Fresh namespaces for each episode, forked from a warm interpreter.

An episode is a process, mount and IPC namespace of its own with its own sized writable file systems. Its first process is
the zygote of its commands; when that is killed the kernel kills and frees everything in the episode, whatever hid where.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection
from typing import NoReturn

from sandboxes.agent import kernel, zygote
from sandboxes.agent.settings import Settings

PLACES, FAILED = b"p", b"x"
"""First bytes of an episode's messages before the zygote's: its directories, or why there is none."""

_TMPFS_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
_PSEUDO_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def serve(control: socket.socket, settings: Settings) -> NoReturn:
    """Open an episode per message, each of which carries the episode's own control socket; answer with its process id.

    The episode before has been killed by then and is collected first.
    """
    kernel.set_dumpable(False)
    try:
        _open_episodes(control, settings)
    except OSError as error:
        control.send(FAILED + str(error).encode())
    finally:
        os._exit(1)


def _open_episodes(control: socket.socket, settings: Settings) -> NoReturn:
    held = () if settings.identity is None else (kernel.CAP_SETUID, kernel.CAP_SETGID, kernel.CAP_KILL)
    filter_program = zygote.filter_of(settings)
    if settings.seen_as is None:
        kernel.bound_capabilities(held)
    own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    control.send(zygote.READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            # Returns when the kernel has ended every process of the episode.
            os.waitpid(-1, 0)
        # For children only: one fork makes the first process of a namespace, and then we turn back.
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            os.close(own_namespace)
            control.close()
            _become_episode(socket.socket(fileno=descriptors[0]), settings, held, filter_program)
        kernel.enter_namespace(own_namespace, kernel.CLONE_NEWPID)
        os.close(descriptors[0])
        control.send(b"%d" % pid)


def _become_episode(
    episode: socket.socket, settings: Settings, held: Collection[int], filter_program: bytes | None
) -> NoReturn:
    try:
        os.setsid()
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        _mount(settings)
        _send_places(episode, settings)
        if settings.seen_as is not None:
            _appear_as(*settings.seen_as)
            kernel.bound_capabilities(held)
        kernel.hold_capabilities(held)
        zygote.serve(episode, settings, filter_program)
    except OSError as error:
        episode.send(FAILED + str(error).encode())
    finally:
        os._exit(1)


def _appear_as(uid: int, gid: int) -> None:
    """Enter a user namespace in which our only user and group have these numbers."""
    own_uid, own_gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {own_uid} 1"), ("gid_map", f"{gid} {own_gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def _mount(settings: Settings) -> None:
    for target, options in settings.mounts.items():
        kernel.mount("tmpfs", target, _TMPFS_FLAGS, options)
    kernel.mount("proc", "/proc", _PSEUDO_FLAGS)


def _send_places(episode: socket.socket, settings: Settings) -> None:
    directories = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in settings.places.values()]
    socket.send_fds(episode, [PLACES], directories)
    for directory in directories:
        os.close(directory)
