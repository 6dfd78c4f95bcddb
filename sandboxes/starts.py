"""Starts of sandboxes, limited for all processes of a user on this host together.

A start is bound by the processor: more at once than cores gain nothing, and all of them take longer. A slot is a locked file,
which the kernel frees when its holder dies. Where no file can be locked, each process keeps to the limit alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandboxes.bootstrap import cache_directory

_ASK_AGAIN_S = 0.02
"""Half of the mean time between two looks: some tenth of a start."""


class HostStarts:
    """``limit`` slots, as files of ``directory``."""

    def __init__(self, limit: int, directory: Path | None = None) -> None:
        self._files = [(directory or cache_directory()) / f"start-{number}.lock" for number in range(limit)]

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free slot and hold it."""
        held = self._take()
        while held == _NONE_FREE:
            await asyncio.sleep(_ASK_AGAIN_S * (0.5 + random.random()))
            held = self._take()
        try:
            yield
        finally:
            if held is not None:
                os.close(held)

    def _take(self) -> int | None:
        for file in self._files:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                os.close(descriptor)
            except OSError:  # a file system without locks
                os.close(descriptor)
                return None
        return _NONE_FREE


_NONE_FREE = -1
