"""How often the kernel has killed a process of this sandbox for memory, where the sandbox can see its own control group."""

from __future__ import annotations

import contextlib

PATHS = ["/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"]
"""Of version 1 and 2, as engines show them to a container: the container's own."""


class OomKills:
    """``paths``: candidates, the first that counts is used."""

    def __init__(self, paths: list[str]) -> None:
        self._path: str | None = next((path for path in paths if _count(path) is not None), None)

    def count(self) -> int:
        """So far; 0 where nothing counts them."""
        return 0 if self._path is None else _count(self._path) or 0


def _count(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
