"""Children of a launcher that are any commands."""

from __future__ import annotations

from agentrl.launch.processes import Child, RunProcesses


def start(processes: RunProcesses, **commands: list[str]) -> None:
    """Children by role, instead of those of the run."""
    processes.children = [Child(role, command) for role, command in commands.items()]
    for child in processes.children:
        processes._spawn(child)
