"""What is printed for people.

Invariants
- nobody_listens: work goes on when its output can't be written any more: the pipe's reader ended, the terminal was closed.
- any_text: what the terminal's encoding has no character for, such as half of a surrogate pair in an error, is written as an
  escape.
"""

from __future__ import annotations

import os
import sys
import unicodedata

_STDOUT = 1


def say(text: str) -> None:
    """Print a line at once. When that fails, it and all that this process prints later go nowhere."""
    encoding = sys.stdout.encoding or "utf-8"
    line = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(line, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)


def visible(text: str) -> str:
    """Control, format and surrogate characters as escapes: ANSI, bidi overrides and NUL can't act on whoever reads it."""
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co") else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )
