"""Who a sandbox belongs to: a process of a host, told apart from a later process with the same id.

What is left of an owner may be removed only when this host can prove that the owner is dead.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OWNER_LABEL = "agentrl.owner"
"""Label of containers; its value is an owner's prefix."""

_NAME = re.compile(r"agentrl-(?P<host>[^ ]+)-(?P<pid>\d+)-(?P<started>\d+)-")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """``host`` is its name and boot; ``started`` the process's start in clock ticks after boot."""

    host: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        started = _start_of(os.getpid())
        assert started is not None
        return cls(_host(), os.getpid(), started)

    @classmethod
    def parse(cls, name: str) -> Owner | None:
        """The owner in a name that begins with a prefix."""
        match = _NAME.match(name)
        return cls(match["host"], int(match["pid"]), int(match["started"])) if match else None

    @property
    def prefix(self) -> str:
        """How names of things that belong to it begin."""
        return f"agentrl-{self.host}-{self.pid}-{self.started}-"

    def certainly_dead(self) -> bool:
        """Whether it was a process of this host and boot that exists no longer. False when that can't be known."""
        return self.host == _host() and _start_of(self.pid) != self.started


@cache
def _host() -> str:
    # Containers share the boot id; their process ids mean nothing to each other, their host names differ.
    name = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{name}.{_BOOT_ID.read_text().strip()[:8]}.{namespace}"


def _start_of(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
