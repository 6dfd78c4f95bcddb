"""Fixtures of tests that run the command line for real."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import sglang_server
from tests.command_line import CommandLine
from tests.sglang_server import SGLang


@pytest.fixture(scope="session")
def command_line() -> Iterator[CommandLine]:
    # Not pytest's own folder: that is closed to the user that the database runs as.
    base = Path(tempfile.mkdtemp(prefix="agentrl-test-"))
    base.chmod(0o755)
    try:
        yield CommandLine(base)
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if str(base) in " ".join(process.info["cmdline"] or []):
                process.kill()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def learned(command_line: CommandLine) -> str:
    """Output of one short learning run named 'learned'; its warm start is in the cache for all later runs."""
    return command_line.run(
        "train",
        "--env",
        "code_agent",
        "--name",
        "learned",
        "--seed",
        "11",
        "trainer.steps=25",
        "trainer.final_learning_rate=1.0",
        "evaluation.episodes=256",
        "evaluation.every=0",
    )


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLang]:
    """The session's real SGLang server; tests that need it are skipped where it can't run."""
    if named := os.environ.get(sglang_server.VARIABLE):
        state = sglang_server.read_state(Path(named))
        if state.problem:
            pytest.skip(state.problem)
        yield state
        return
    python = sglang_server.installed()
    if python is None:
        pytest.skip("SGLang is not installed: scripts/install-sglang.sh")
    process, url = sglang_server.start(python, tmp_path_factory.mktemp("sglang"))
    try:
        sglang_server.wait_ready(process, url)
        yield SGLang(str(python), url)
    finally:
        process.kill()
        process.wait(30)
