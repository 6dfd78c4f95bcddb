"""A real SGLang server for the tests, one a test session.

    python -m tests.sglang_server FOLDER     installs SGLang if need be, starts the server, serves until it is told to stop

scripts/test.sh runs this in the background and names the folder in ``AGENTRL_TEST_SGLANG``; tests wait for its ``state.json``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from agentrl.engine.sglang.command import default_python, server_command
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.store.embedded import default_home
from agentrl.weights.broadcast import free_port

ROOT = Path(__file__).parent.parent
MAX_CONTEXT = 96
VARIABLE = "AGENTRL_TEST_SGLANG"
WAIT_S = 420.0
"""Installation and start, on a machine that runs the other tests meanwhile."""


@dataclass(frozen=True)
class SGLang:
    """An installation and a server of `contract_model`, or why there is none."""

    python: str = ""
    url: str = ""
    problem: str = ""


def contract_model(folder: Path) -> Path:
    """The small model of the engine contract tests."""
    build_tokenizer(["say something, then stop"] * 10, TokenizerPlan(), folder)
    build_tiny_model(folder, seed=0, d=32, layers=2, heads=4, kv=2, ff=48, max_positions=MAX_CONTEXT)
    return folder


def installed() -> Path | None:
    python = default_python(default_home())
    return python if python.is_file() else None


def start(python: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The process and its address; the server ends with this process."""
    port = free_port("127.0.0.1")
    command = server_command(python, contract_model(folder / "model"), port=port, slots=16, max_context=MAX_CONTEXT, gpu=False)
    environment = {**os.environ, **command.environment, "AGENTRL_PARENT": str(os.getpid()), "OMP_NUM_THREADS": "1"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command.arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return process, f"http://127.0.0.1:{port}"


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise RuntimeError("the server did not start: see server.log")


def read_state(folder: Path) -> SGLang:
    """What the background process has written, once it has."""
    deadline = time.monotonic() + WAIT_S
    while not (folder / "state.json").is_file():
        if time.monotonic() > deadline:
            return SGLang(problem=f"no SGLang server after {WAIT_S:.0f} s")
        time.sleep(0.2)
    return SGLang(**json.loads((folder / "state.json").read_text()))


def main(folder: Path) -> None:
    def tell(state: SGLang) -> None:
        (folder / "state.part").write_text(json.dumps(state.__dict__))
        (folder / "state.part").rename(folder / "state.json")

    folder.mkdir(parents=True)
    install = subprocess.run([str(ROOT / "scripts" / "install-sglang.sh")], capture_output=True, text=True, check=False)
    python = installed()
    if install.returncode or python is None:
        tell(SGLang(problem=f"SGLang can't be installed: {install.stderr.strip()[-300:]}"))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    process, url = start(python, folder)
    try:
        try:
            wait_ready(process, url)
        except RuntimeError as error:
            tell(SGLang(problem=f"{error}: {(folder / 'server.log').read_text(errors='replace')[-500:]}"))
            return
        tell(SGLang(str(python), url))
        process.wait()
    finally:
        process.kill()
        process.wait(30)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
