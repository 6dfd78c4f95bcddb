"""The agent: one poll loop that serves requests while commands run.

- Every request gets exactly one reply with its id; requests are served while commands run.
- A command that times out is ended with everything it started; what a finished command leaves behind ends with it.
  (A process that left its command's session ends with the first command that ends or times out.)
- Whatever ends commands, a limit, a kill or a reset, first waits until all that were asked for have started: one that does not
  exist yet can't be killed, and would come to life afterwards. A zygote that never starts them is a lost ground.
- A job goes on until it ends, is killed, or the episode is over; it does not keep an idle sandbox alive.
- Idle is who neither asks nor waits for an answer: the time begins with the last request or answer, whichever is later.
- The end of the client's stream, of the lifetime or of the idle time ends the agent, and with it the sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from sandboxes.agent import frames, kernel, syscall_filter, zygote
from sandboxes.agent.ground import Ground, GroundLost, InPlace, Namespaces
from sandboxes.agent.jobs import Jobs, Reply
from sandboxes.agent.memory import OomKills
from sandboxes.agent.program import Program
from sandboxes.agent.run import Run
from sandboxes.agent.settings import NAMESPACES, Settings

MAX_OUTPUT = 16 << 20
"""Per stream: two of them fit a frame."""

_READ_SIZE = 1 << 18
_KILL_S = 25.0
_LONGEST_POLL_S = 3600.0
"""The system counts a poll's milliseconds in 32 bits."""


class Agent:
    """Reads frames from one descriptor, writes them to another."""

    def __init__(self, ground: Ground, settings: Settings, incoming: int, outgoing: int) -> None:
        self._ground = ground
        self._incoming, self._outgoing = incoming, outgoing
        self._frames = frames.FrameBuffer()
        self._unsent = bytearray()
        self._runs: dict[int, Run] = {}
        self._jobs = Jobs()
        self._oom_kills = OomKills(settings.oom_counters)
        self._ended: deque[tuple[int, int | None, str]] = deque()
        self._next_run = 0
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._idle_s = settings.idle_s
        self._end_of_life = self._idle_since = time.monotonic()
        self._end_of_life += settings.ttl_s
        self._operations: dict[str, Callable[[dict[str, Any], bytes], Reply | None]] = {
            "ping": self._ping,
            "run": self._run,
            "start": self._start,
            "job": self._job,
            "kill_job": self._kill_job,
            "write_file": self._write_file,
            "read_file": self._read_file,
            "list_dir": self._list_dir,
            "stat": self._stat,
            "kill_all": self._kill_all,
            "reset": self._reset,
        }

    def serve(self) -> NoReturn:
        """Until the stream ends."""
        self._watch(self._incoming, self._receive)
        self._watch(self._ground.control.fileno(), self._hear_zygote)
        self._send({
            "id": 0,
            "version": frames.PROTOCOL_VERSION,
            "python": platform.python_version(),
            "filter": syscall_filter.supported(),
        })  # fmt: skip
        while True:
            events = self._poll.poll(self._milliseconds_to_wait())
            # Requests last: a reset, or a kill that hears the zygote, leaves nothing to what was seen of other descriptors.
            for descriptor, _ in sorted(events, key=lambda event: event[0] == self._incoming):
                if descriptor == self._outgoing:
                    self._flush()
                elif descriptor in self._readers:
                    self._readers[descriptor]()
            while self._ended:
                self._finish(*self._ended.popleft())
            self._expire()
            for request_id, (fields, output) in self._jobs.due():
                self._send({**fields, "id": request_id}, output)

    def _watch(self, descriptor: int, reader: Callable[[], None]) -> None:
        self._readers[descriptor] = reader
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _milliseconds_to_wait(self) -> float:
        ends = [run.deadline for run in self._runs.values()] + [self._end_of_life, self._jobs.next_deadline]
        if not self._is_waited_for():
            ends.append(self._idle_since + self._idle_s)
        return min(_LONGEST_POLL_S, max(0.0, min(ends) - time.monotonic())) * 1000 + 1

    def _is_waited_for(self) -> bool:
        return self._jobs.are_waited_for or any(not run.is_job for run in self._runs.values())

    def _expire(self) -> None:
        now = time.monotonic()
        if now >= self._end_of_life or (now >= self._idle_since + self._idle_s and not self._is_waited_for()):
            self._end()
        for number, run in list(self._runs.items()):
            if now < run.deadline:
                continue
            if run.limit:
                raise GroundLost("the zygote did not report the end of a killed command")
            run.expire()
            self._end_all_but_others_of(number)
            run.expect_report()

    def _receive(self) -> None:
        try:
            data = os.read(self._incoming, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._end()
        self._idle_since = time.monotonic()
        self._frames.feed(data)
        while frame := self._frames.pop():
            header, body = frame
            self._answer(header, body)

    def _end(self) -> NoReturn:
        # The first process of a namespace takes all others with it.
        if not self._ground.processes.whole_namespace:
            self._ground.processes.kill()
        os._exit(0)

    def _answer(self, header: dict[str, Any], body: bytes) -> None:
        try:
            reply = self._operations[header["op"]](header, body)
        except OSError as error:
            reply = {"errno": error.errno or 0, "error": error.strerror or str(error)}, b""
        except ValueError as error:  # a path that no system takes: a NUL, half a surrogate pair
            reply = {"errno": errno.EINVAL, "error": str(error)}, b""
        if reply is not None:
            fields, output = reply
            self._send({**fields, "id": header["id"]}, output)

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        self._idle_since = time.monotonic()
        waiting = bool(self._unsent)
        self._unsent += frames.encode(header, body)
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: os.write(self._outgoing, self._unsent)]
        if self._unsent:
            self._poll.register(self._outgoing, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._outgoing)

    def _ping(self, header: dict[str, Any], body: bytes) -> Reply:
        return {}, b""

    def _run(self, header: dict[str, Any], body: bytes) -> None:
        limits = header["timeout_s"], min(header["max_output"], MAX_OUTPUT), header.get("silence_s")
        self._fork(Run(header["id"], *limits, self._oom_kills.count()), header, body)

    def _start(self, header: dict[str, Any], body: bytes) -> Reply:
        run = Run(header["id"], None, min(header["max_output"], MAX_OUTPUT), None, self._oom_kills.count())
        number = self._fork(run, header, body)
        self._jobs.begin(number, run)
        return {"job": number}, b""

    def _fork(self, run: Run, header: dict[str, Any], body: bytes) -> int:
        self._next_run += 1
        number = self._next_run
        fields = {"argv": header.get("argv"), "env": header["env"], "stdin": bool(body), "cwd": header.get("cwd")}
        request = run.request_file(fields, body)
        self._runs[number] = run
        self._ground.fork(number, request, *run.writing_ends)
        os.close(request)
        run.close_writing_ends()
        for descriptor in run.kept:
            self._watch(descriptor, lambda descriptor=descriptor: self._read_output(run, descriptor))  # type: ignore[misc]
        return number

    def _job(self, header: dict[str, Any], body: bytes) -> Reply | None:
        result = self._jobs.result(header["job"])
        if not self._jobs.is_running(header["job"]) or header["wait_s"] <= 0:
            return result
        self._jobs.wait(header["id"], header["job"], time.monotonic() + header["wait_s"])
        return None

    def _kill_job(self, header: dict[str, Any], body: bytes) -> Reply | None:
        number = header["job"]
        result = self._jobs.result(number)
        if not self._jobs.is_running(number):
            return result
        self._end_all_but_others_of(number)
        self._jobs.wait(header["id"], number, time.monotonic() + _KILL_S)
        return None

    def _read_output(self, run: Run, descriptor: int) -> None:
        if not run.read(descriptor):
            self._unwatch(descriptor)

    def _hear_zygote(self) -> None:
        message, sender = self._ground.receive()
        kind, content = message[:1], message[1:]
        if kind == zygote.STARTED and int(content) in self._runs:
            self._runs[int(content)].session = sender
        elif kind == zygote.ENDED:
            number, status, *error = content.split(b" ", 2)
            self._ended.append((int(number), int(status) if status else None, b"".join(error).decode()))

    def _finish(self, number: int, status: int | None, error: str = "") -> None:
        if number not in self._runs:
            return
        run = self._runs.pop(number)
        self._end_all_but_others_of(number)
        for descriptor in run.kept:
            self._unwatch(descriptor)
        fields, output = run.finish(status)
        fields["start_error"] = error
        fields["oom_killed"] = self._oom_kills.count() > run.oom_kills
        if run.is_job:
            self._jobs.end(number, (fields, output))
        else:
            self._send({**fields, "id": run.request_id}, output)

    def _end_all_but_others_of(self, number: int) -> None:
        """Kill everything outside the sessions of the other commands."""
        self._learn_starts()
        others = [run for other, run in self._runs.items() if other != number]
        if not self._ground.processes.kill({run.session for run in others if run.session is not None}):
            raise GroundLost("processes that can't be killed")

    def _learn_starts(self) -> None:
        """Hear the zygote until each command has a session or is over. `GroundLost` when it stays silent."""
        while {number for number, run in self._runs.items() if run.session is None} - {number for number, _, _ in self._ended}:
            self._hear_zygote()

    def _write_file(self, header: dict[str, Any], body: bytes) -> Reply:
        self._ground.places.write(header["path"], body, header["mode"])
        return {}, b""

    def _list_dir(self, header: dict[str, Any], body: bytes) -> Reply:
        entries = self._ground.places.listing(header["path"], header["max_entries"])
        return {}, json.dumps(entries).encode()

    def _stat(self, header: dict[str, Any], body: bytes) -> Reply:
        return {"status": self._ground.places.status(header["path"])}, b""

    def _read_file(self, header: dict[str, Any], body: bytes) -> Reply:
        return {}, self._ground.places.read(header["path"], min(header["max_bytes"], frames.MAX_BODY))

    def _kill_all(self, header: dict[str, Any], body: bytes) -> Reply:
        self._learn_starts()
        return {"killed": self._ground.processes.kill()}, b""

    def _reset(self, header: dict[str, Any], body: bytes) -> Reply:
        self._learn_starts()
        self._ground.processes.kill()
        for number in list(self._runs):
            self._finish(number, -signal.SIGKILL)
        for request_id, (fields, output) in self._jobs.due():
            self._send({**fields, "id": request_id}, output)
        self._jobs.forget()
        self._unwatch(self._ground.control.fileno())
        doubts = self._ground.reset()
        self._watch(self._ground.control.fileno(), self._hear_zygote)
        return {"doubts": doubts}, b""


def main(program: Program, settings: Settings) -> NoReturn:
    """Take over the standard streams as the protocol's, then serve; a failure is told to the client before the end."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    kernel.set_dumpable(False)
    if os.getpid() != 1:
        kernel.adopt_orphans()
    for descriptor in (incoming, outgoing):
        os.set_blocking(descriptor, False)
    try:
        ground = (Namespaces if settings.reset == NAMESPACES else InPlace)(settings, program)
        Agent(ground, settings, incoming, outgoing).serve()
    except (GroundLost, OSError, frames.FrameError) as error:
        os.set_blocking(outgoing, True)
        with contextlib.suppress(OSError):
            os.write(outgoing, frames.encode({"id": 0, "lost": f"{type(error).__name__}: {error}"}))
        sys.exit(1)
