"""Child processes that answer commands: one JSON line in, one JSON line out.

A child runs ``python -m benchmarks.store.processes MODULE``; the module's ``commands(**setup)`` gives a function for each
command. Peers run under an interpreter of their own. What a child prints goes to a file, whose end is shown when it
fails.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class ChildFailed(Exception):
    """A child ended or answered with an error."""


class Child:
    """One child process."""

    def __init__(self, module: str, python: str = sys.executable, **setup: Any) -> None:
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.store.processes", f"benchmarks.store.{module}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT,
        )  # fmt: skip
        self._write(setup)

    def _write(self, message: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def send(self, command: str, **arguments: Any) -> None:
        self._write([command, arguments])

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return answer["value"]

    def ask(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.receive()

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"

    def close(self) -> None:
        """End the child by closing its input; kill it when it does not leave."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


@contextmanager
def children(count: int, module: str, **setup: Any) -> Iterator[Sequence[Child]]:
    """``count`` equal children that are ready; each also gets its ``number``."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            child = Child(module, number=number, **setup)
            stack.callback(child.close)
            started.append(child)
        for child in started:
            child.receive()
        yield started


def ask_all(started: Sequence[Child], command: str, **arguments: Any) -> list[Any]:
    """The answers of all children, which work at the same time."""
    for child in started:
        child.send(command, **arguments)
    return [child.receive() for child in started]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        found = importlib.import_module(sys.argv[1]).commands(**json.loads(sys.stdin.readline()))
    except (Exception, SystemExit) as e:
        answer(error=f"{type(e).__name__}: {e}")
        return
    answer(value=None)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer(value=found[name](**arguments))
        except Exception as e:
            answer(error=f"{type(e).__name__}: {e}")
    if "close" in found:
        found["close"]()


if __name__ == "__main__":
    main()
