"""The fixed paths of the task format, and where they are in a sandbox, whose root is read-only.

Texts of a task (instruction, scripts, tests) are rewritten accordingly when they are read, so a task needs no change.
"""

from __future__ import annotations

import re

WORKDIR = "/workspace"
TESTS = "/tmp/tests"
SOLUTION = "/tmp/solution"
LOGS = "/tmp/logs"
VERDICTS = f"{LOGS}/verifier"

_FIXED = {"/tests": TESTS, "/solution": SOLUTION, "/oracle": SOLUTION, "/logs": LOGS}


class Mapping:
    """Rewrites the format's paths, with ``workdir`` as the task's own working directory."""

    def __init__(self, workdir: str) -> None:
        self._places = {workdir.rstrip("/") or "/app": WORKDIR, **_FIXED}
        longest_first = sorted(self._places, key=len, reverse=True)
        # Not inside of a longer path, an address or a name: what comes before must not belong to it.
        self._pattern = re.compile(r"(?<![\w./})~\]-])(" + "|".join(map(re.escape, longest_first)) + r")(?![\w.-]*\w)")

    def text(self, text: str) -> str:
        """``text`` with each path replaced."""
        return self._pattern.sub(lambda found: self._places[found[1]], text)

    def file(self, data: bytes) -> bytes:
        """The same for a file; what is no UTF-8 text stays as it is."""
        try:
            return self.text(data.decode()).encode()
        except UnicodeDecodeError:
            return data
