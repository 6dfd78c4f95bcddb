"""One command in progress: its output, its clocks, its end."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Any

from sandboxes.agent import command
from sandboxes.agent.output import HeadTail

_READ_SIZE = 65536
_GRACE_S = 5.0

TIMEOUT, NO_OUTPUT_TIMEOUT = "timeout", "no_output_timeout"
"""Names of the limits that end a command."""


class Run:
    """Output pipes and limits of a command. ``session`` is its process id once it has started.

    ``timeout_s``: None for a job, which nothing but a kill or a reset ends. ``silence_s``: how long it may print nothing.
    ``oom_kills``: how many processes of the sandbox had been killed for memory before it.
    """

    def __init__(
        self, request_id: int, timeout_s: float | None, max_output: int, silence_s: float | None = None, oom_kills: int = 0
    ) -> None:
        self.request_id = request_id
        self.is_job = timeout_s is None
        self.session: int | None = None
        self.limit = ""
        self.oom_kills = oom_kills
        self.kept = {}
        self._started = self._printed = time.monotonic()
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._silence_s = math.inf if silence_s is None else silence_s
        self._report_by = math.inf
        ends = []
        for _ in range(2):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self.kept[reading] = HeadTail(max_output)
            ends.append(writing)
        self.writing_ends = ends

    @property
    def deadline(self) -> float:
        """When it must be looked after: its next limit, or, once it was ended, the zygote's report."""
        if self.limit:
            return self._report_by
        return min(self._started + self._timeout_s, self._printed + self._silence_s)

    def request_file(self, fields: dict[str, Any], body: bytes) -> int:
        """A memory file with what the child is to do."""
        descriptor = os.memfd_create("request", os.MFD_CLOEXEC)
        rest = memoryview(command.encode_request(fields, body))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def close_writing_ends(self) -> None:
        """Only the child holds them from now on."""
        for descriptor in self.writing_ends:
            os.close(descriptor)

    def read(self, descriptor: int) -> bool:
        """Take what a pipe has. False at its end."""
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            return True
        self._printed = time.monotonic()
        self.kept[descriptor].add(data)
        return bool(data)

    def expire(self) -> None:
        """A limit is reached."""
        self.limit = TIMEOUT if time.monotonic() >= self._started + self._timeout_s else NO_OUTPUT_TIMEOUT

    def expect_report(self) -> None:
        """It was killed: a last deadline for the zygote's report of its end."""
        self._report_by = time.monotonic() + _GRACE_S

    def finish(self, status: int | None) -> tuple[dict[str, Any], bytes]:
        """Take what is left in the pipes and close them; the last result."""
        for descriptor, kept in self.kept.items():
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, _READ_SIZE):
                    kept.add(data)
            os.close(descriptor)
        fields, output = self.so_far()
        return {**fields, "exit_code": status, "running": False}, output

    def so_far(self) -> tuple[dict[str, Any], bytes]:
        """The result's fields and its output, standard output first, while it runs."""
        out, err = self.kept.values()
        kept_out, kept_err = out.kept(), err.kept()
        fields = {
            "exit_code": None,
            "running": True,
            "limit": self.limit,
            "truncated": out.truncated or err.truncated,
            "total_stdout": out.total,
            "total_stderr": err.total,
            "stdout": len(kept_out),
            "duration_s": time.monotonic() - self._started,
        }
        return fields, kept_out + kept_err
