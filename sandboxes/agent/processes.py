"""Which processes belong to commands, and how to end them: by direct kills, repeated until none is left.

Killing never forks (a full process table would stop it), and a process that forks, detaches or ignores signals meanwhile is
met by the next round.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

from sandboxes.agent import kernel

_BUDGET_S = 20.0
_QUICK_ROUNDS = 20
_PROD_ROUNDS = (3, 10, 30, 100, 300)


class Processes:
    """All processes but the spared ones; of the whole process namespace when the agent is its first process."""

    def __init__(self, prod: Callable[[], None]) -> None:
        """``prod`` asks the parent of the commands to collect ended children."""
        self.spared: set[int] = {os.getpid()}
        self.whole_namespace = os.getpid() == 1
        self._prod = prod

    def others(self) -> list[int]:
        """Processes of commands, ended but uncollected ones included."""
        self._collect()
        if self.whole_namespace:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        else:
            pids = _descendants(os.getpid())
        return [pid for pid in pids if pid not in self.spared]

    def kill(self, kept_sessions: Collection[int] = ()) -> bool:
        """End all others except members of ``kept_sessions``. False when some resist for too long."""
        give_up = time.monotonic() + _BUDGET_S
        rounds = 0
        while victims := [pid for pid in self.others() if not kept_sessions or _session(pid) not in kept_sessions]:
            if time.monotonic() > give_up:
                return False
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            rounds += 1
            if rounds in _PROD_ROUNDS:
                self._prod()
            time.sleep(0.0005 if rounds < _QUICK_ROUNDS else 0.01)
        return True

    def _collect(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG | kernel.WALL)
                if pid == 0:
                    return


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold anything; the parent is the second field behind it.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, queue = [], [root]
    while queue:
        inner = children.get(queue.pop(), [])
        found += inner
        queue += inner
    return found
