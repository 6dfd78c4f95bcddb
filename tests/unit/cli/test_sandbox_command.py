"""``agentrl sandbox`` in a new process: wrong input is one paragraph and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def sandbox(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl.cli.main", "sandbox", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["check", "--provider", "dokcer"], 2, "docker, podman, bubblewrap, or module:Class"),
        (["check", "--provider", "no_such_module:X"], 2, "no_such_module"),
        (["check", "--provider", "docker"], 3, "no daemon at unix:///nowhere.sock"),
        (["build", "no-such-recipe"], 2, "shipped: base"),
        (["build", "base", "--provider", "bubblewrap"], 2, "docker or podman"),
        (["build", "base"], 3, "no daemon at unix:///nowhere.sock"),
        (["bootstrap"], 3, "no daemon at unix:///nowhere.sock"),
    ],
)
def test_wrong_input__is_one_paragraph(arguments: list[str], code: int, told: str) -> None:
    ran = sandbox(*arguments, DOCKER_HOST="unix:///nowhere.sock")
    assert ran.returncode == code, ran.stderr
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
