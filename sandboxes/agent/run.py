"""One command in progress: its output, its clock, its end."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from sandboxes.agent import command
from sandboxes.agent.output import HeadTail

_READ_SIZE = 65536
_GRACE_S = 5.0


class Run:
    """Output pipes and deadline of a command. ``session`` is its process id once it has started."""

    def __init__(self, request_id: int, timeout_s: float, max_output: int) -> None:
        self.request_id = request_id
        self.session: int | None = None
        self.timed_out = False
        self.deadline = time.monotonic() + timeout_s
        self.kept = {}
        self._started = time.monotonic()
        ends = []
        for _ in range(2):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self.kept[reading] = HeadTail(max_output)
            ends.append(writing)
        self.writing_ends = ends

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
        self.kept[descriptor].add(data)
        return bool(data)

    def expire(self) -> None:
        """The time is over: a last deadline for the zygote's report."""
        self.timed_out = True
        self.deadline = time.monotonic() + _GRACE_S

    def finish(self, status: int | None) -> tuple[dict[str, Any], bytes]:
        """Close the pipes; the result's fields and its output, standard output first."""
        for descriptor, kept in self.kept.items():
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, _READ_SIZE):
                    kept.add(data)
            os.close(descriptor)
        out, err = self.kept.values()
        kept_out, kept_err = out.kept(), err.kept()
        fields = {
            "exit_code": status,
            "timed_out": self.timed_out,
            "truncated": out.truncated or err.truncated,
            "total_stdout": out.total,
            "total_stderr": err.total,
            "stdout": len(kept_out),
            "duration_s": time.monotonic() - self._started,
        }
        return fields, kept_out + kept_err
