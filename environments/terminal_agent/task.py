"""What a terminal task is made of, whichever format or generator it came from."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from environments.terminal_agent.places import SOLUTION, WORKDIR

Files = Mapping[str, bytes]
"""Path relative to some directory -> content."""


@dataclass(frozen=True, slots=True)
class TerminalTask:
    """Paths in ``instruction`` and in text files are already those of the sandbox."""

    instruction: str
    tests: Files
    """Uploaded for grading, in another sandbox than the agent's."""
    test_script: str
    """Its name among ``tests``."""
    solution: Files = field(default_factory=dict)
    solution_script: str = "solve.sh"
    start: Files = field(default_factory=dict)
    """What the working directory holds at the start, besides what an image brings."""
    image: str | None = None
    """None: any provider's base image does."""
    image_workdir: str | None = None
    """Where the image keeps what the working directory starts with."""
    environment: Mapping[str, str] = field(default_factory=dict)
    test_environment: Mapping[str, str] = field(default_factory=dict)
    test_timeout_s: float = 600.0
    verdict_by_exit_code: bool = False
    """The older format's tests write no reward: pytest's summary and the exit code of the script tell."""

    def gold_command(self) -> str:
        """One shell command that runs the solution, as the policy could have typed it."""
        lines = [f"mkdir -p {SOLUTION}"]
        for name, data in sorted(self.solution.items()):
            path = shlex.quote(f"{SOLUTION}/{name}")
            lines.append(f"mkdir -p $(dirname {path}) && echo {base64.b64encode(data).decode()} | base64 -d > {path}")
        script = self.solution[self.solution_script]
        return "\n".join([*lines, f"cd {WORKDIR} && {shell_of(script)} {SOLUTION}/{self.solution_script}"])


def shell_of(script: bytes) -> str:
    """``bash`` for a script that asks for it in its first line, else ``sh``."""
    return "bash" if b"bash" in script.split(b"\n", 1)[0] else "sh"
