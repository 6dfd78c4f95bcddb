"""What a long-running process prints for its user.

Invariants
- nobody_listens: work goes on when its output can't be written any more: the pipe's reader ended, the terminal was closed.
"""

from __future__ import annotations

import os

_STDOUT = 1


def say(text: str) -> None:
    """Print a line at once. When that fails, it and all that this process prints later go nowhere."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
