"""The command line as a user runs it, in a folder and with a private embedded database."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

AGENTRL = [sys.executable, "-m", "agentrl.cli.main"]
TIMEOUT_S = 600


@dataclass
class CommandLine:
    """``agentrl`` as a user runs it, with its own home, cache and runs folder."""

    base: Path

    @property
    def environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if k not in ("AGENTRL_DATABASE_URL", "AGENTRL_VERBOSE")}
        folders = {"AGENTRL_HOME": "home", "AGENTRL_CACHE": "cache", "AGENTRL_RUNS": "runs"}
        return {**keep, **{name: str(self.base / folder) for name, folder in folders.items()}}

    def run(self, *arguments: str, code: int = 0) -> str:
        """Output of a command that must end with ``code``."""
        done = subprocess.run(
            [*AGENTRL, *arguments],
            env=self.environment,
            cwd=self.base,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, f"exit code {done.returncode}:\n{done.stdout}\n{self.errors()}"
        return done.stdout

    def start(self, *arguments: str) -> Running:
        path = Path(tempfile.mkstemp(prefix="output-", dir=self.base)[1])
        with path.open("w") as output:
            process = subprocess.Popen(
                [*AGENTRL, *arguments],
                env=self.environment,
                cwd=self.base,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(self, process, path)

    def errors(self) -> str:
        """What the processes of all runs wrote to stderr."""
        return "\n".join(f"{p.name}: {p.read_text()[-2000:]}" for p in sorted(self.base.glob("runs/*/logs/*.stderr")))

    def processes(self, word: str) -> list[psutil.Process]:
        """Processes of this command line's runs whose command names ``word``."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if word in line and "agentrl.cli.main" in line and process.pid != os.getpid():
                found.append(process)
        return found


@dataclass
class Running:
    """A command that is still running."""

    command_line: CommandLine
    process: subprocess.Popen[bytes]
    path: Path

    @property
    def output(self) -> str:
        return self.path.read_text()

    def wait_for(self, pattern: str) -> None:
        """Until the output matches."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.output):
            assert self.process.poll() is None, f"ended early:\n{self.output}\n{self.command_line.errors()}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.output}\n{self.command_line.errors()}"
            time.sleep(0.1)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)
