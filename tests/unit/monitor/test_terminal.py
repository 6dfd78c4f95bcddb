"""Printing for a user who may have gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BODY = (
    "import sys; from agentrl.monitor.terminal import say; from agentrl.trainer.console import Console; "
    "sys.stdin.read(); say('step 1'); Console(9).say('step 2'); print('step 3'); sys.exit(7)"
)
"""Prints once its input is closed; what is left in the buffer is flushed at the exit."""


def pipe() -> tuple[int, int]:
    return os.pipe()


def terminal() -> tuple[int, int]:
    return pty.openpty()


@pytest.mark.parametrize("opened", [pipe, terminal])
def test_nobody_listens__work_goes_on(opened: Callable[[], tuple[int, int]]) -> None:
    reader, writer = opened()
    process = subprocess.Popen(
        [sys.executable, "-c", BODY], cwd=ROOT, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    os.close(reader)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (7, "")


@pytest.mark.parametrize(("encoding", "written"), [("ascii", "\\xe9\\ud800"), ("utf-8", "é\\ud800")])
def test_any_text__is_written(encoding: str, written: str) -> None:
    body = r"from agentrl.monitor.terminal import say; say('\u00e9\ud800')"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", body], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert done.stdout.decode() == written + "\n"
