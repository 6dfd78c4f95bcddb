"""Says which line of an author's code blocks the event loop.

While one does, no other episode moves and no time limit can end it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrl.environment.code_places import running_at

AFTER_S = 10.0


@contextmanager
def told_when_blocked(say: Callable[[str], None], after_s: float = AFTER_S) -> Iterator[None]:
    """While the body runs on an event loop, ``say`` is told from another thread of each call that blocks the loop so long."""
    loop, thread, over = asyncio.get_running_loop(), threading.get_ident(), threading.Event()

    def watch() -> None:
        while not over.wait(after_s):
            moved = threading.Event()
            try:
                loop.call_soon_threadsafe(moved.set)
            except RuntimeError:  # the loop was closed
                return
            if moved.wait(after_s):
                continue
            if place := running_at(sys._current_frames().get(thread)):
                say(
                    f"an async method of the environment has blocked the event loop for {after_s:g} s{place}: nothing can end "
                    "it, and no other episode moves. Await there, or make the tool a sync method, which gets a thread"
                )
            while not moved.wait(1.0) and not over.is_set():
                pass

    threading.Thread(target=watch, daemon=True, name="blocked-loop").start()
    try:
        yield
    finally:
        over.set()
