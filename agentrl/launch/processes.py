"""The processes of a run on this machine.

Invariants
- no_orphans: every child dies with the launcher, even one killed by SIGKILL.
- restart: a rollout, evaluation or reward worker that dies is started again; a trainer that crashes is started again and
  resumes. After `MAX_RESTARTS` deaths without a committed step in between the run fails with the child's log named.
- fenced_stays_out: a trainer refused by its fence is never restarted (two of them would fence each other for ever).
- servers_last: a server ends after those that use it, and at once, since it holds nothing that must be saved.
- two_signals: the first stop asks (SIGTERM) and waits, the second kills (SIGKILL).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import AgentRLError, EnvironmentFault, NotReadyError, RunFailed
from agentrl.monitor.terminal import say

EXIT_FENCED = 4
FINAL_CODES = (2, 3, 5)
"""Bad usage, missing environment, failed run: a restart can't help."""
_FINAL_ERRORS: Mapping[int, type[AgentRLError]] = {2: EnvironmentFault, 3: NotReadyError}
"""The launcher ends with the exit code of the child that can't go on."""
MAX_RESTARTS = 3
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent ends. Called at the start of a child; covers a parent already gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


@dataclass
class Child:
    """One role of a run and its current process."""

    role: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the launcher's own."""
    prints: bool = False
    """All that it prints is its log; other children write one of their own and print for the user."""
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0

    @property
    def evaluates(self) -> bool:
        """Also needed when the training is over and its last evaluation is not."""
        return self.role.endswith("evaluation") or self.role.startswith("reward-")

    @property
    def code(self) -> int | None:
        """Exit code of the current process; None while it runs."""
        return self.process.poll() if self.process else None


@dataclass
class RunProcesses:
    """Starts, watches and stops the trainer, the rollout, evaluation and reward workers of one run.

    ``servers``: further processes that these need, started first.
    """

    run: str
    folder: Path
    workers: int
    reward_workers: int = 0
    servers: Sequence[Child] = ()
    children: list[Child] = field(default_factory=list)
    _last_step: int = -1

    def start(self, *, trains: bool = True) -> None:
        """``trains`` False: only the evaluation worker and who grades, for what a finished training left to score."""
        base = [sys.executable, "-m", "agentrl.cli.main"]
        roles = [("trainer", ["trainer"])] if trains else []
        roles += [(f"rollout-{i}", ["rollout", "--worker", str(i)]) for i in range(self.workers if trains else 0)]
        roles += [("evaluation", ["rollout", "--evaluate"])]
        roles += [(f"reward-{i}", ["reward", "--worker", str(i)]) for i in range(self.reward_workers)]
        self.children = [server for server in self.servers if trains or server.evaluates]
        self.children += [Child(role, [*base, *arguments, "--run", self.run]) for role, arguments in roles]
        for child in self.children:
            self._spawn(child)

    @property
    def trainer(self) -> Child | None:
        return next((child for child in self.children if child.role == "trainer"), None)

    def watch(self, step: int) -> bool:
        """Restart what died. True once the trainer has ended well; an error with a child's exit code when it can't go on."""
        if step > self._last_step:
            self._last_step = step
            for child in self.children:
                child.deaths = 0
        trainer = self.trainer
        code = trainer.code if trainer else 0
        if trainer and code == EXIT_FENCED:
            raise RunFailed(f"Another trainer holds run {self.run}; this one stops for good. Log: {self._log(trainer)}")
        trained = code == 0
        for child in self.children:
            if child.code is not None and (child is not trainer or not trained) and not (trained and not child.evaluates):
                self._restart(child)
        return trained

    def stop(self) -> None:
        """Ask all children to end; they release their work. `wait` ends the servers after them."""
        for child in self.children:
            if child.process and child.code is None and not child.prints:
                child.process.terminate()

    def kill(self) -> None:
        for child in self.children:
            if child.process and child.code is None:
                child.process.kill()

    def wait(self, timeout: float) -> bool:
        """True when all children have ended."""
        deadline = time.monotonic() + timeout
        for child in sorted(self.children, key=lambda child: child.prints):
            if child.process is None:
                continue
            if child.prints:
                child.process.kill()
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def _restart(self, child: Child) -> None:
        child.deaths += 1
        if child.code in FINAL_CODES or child.deaths > MAX_RESTARTS:
            raise _FINAL_ERRORS.get(child.code or 0, RunFailed)(
                f"The {child.role} process of run {self.run} ended with code {child.code} "
                f"({child.deaths} {'time' if child.deaths == 1 else 'times'} without progress): {self._last_words(child)} "
                f"Its log: {self._log(child)}"
            )
        say(f"  {child.role} ended with code {child.code}; starting it again ({self._last_words(child)})")
        self._spawn(child)

    def _spawn(self, child: Child) -> None:
        environment = {**os.environ, **child.environment, "AGENTRL_PARENT": str(os.getpid()), "OMP_NUM_THREADS": "1"}
        environment["AGENTRL_VERBOSE"] = "1"  # its stderr is a log: tracebacks belong there
        # A session of its own: Ctrl-C reaches the launcher alone, which then stops the children in order.
        errors = (self.folder / "logs" / f"{child.role}.stderr").open("ab")
        with errors:
            child.process = subprocess.Popen(
                child.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=errors if child.prints else None,
                stderr=errors,
                start_new_session=True,
            )

    def _last_words(self, child: Child) -> str:
        """What it wrote last to its stderr: its own paragraph, or the last line of a traceback."""
        lines = (self.folder / "logs" / f"{child.role}.stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("agentrl: ")[:2000] if lines else "it said nothing."

    def _log(self, child: Child) -> Path:
        return self.folder / "logs" / f"{child.role}.{'stderr' if child.prints else 'jsonl'}"
