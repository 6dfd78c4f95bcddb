"""The ranks of a trainer on this machine.

Invariants
- all_or_none: when one rank ends badly the others are killed; they would wait for it for ever.
- first_speaks: the exit code is rank 0's wherever it has one of its own, since it alone knows the store.
- one_stop: a stop is passed to rank 0, which finishes its step and lets the others go; they don't heed one themselves.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from types import FrameType

GRACE_S = 20.0
"""Time that rank 0 gets to say why it can't go on after another rank has died."""
POLL_S = 0.1


def run_ranks(command: Sequence[str], n: int) -> int:
    """Run ``command`` n times under torchrun's environment until all have ended; the exit code."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if ranks:
            ranks[0].terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        for rank in range(n):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "AGENTRL_PARENT": str(os.getpid())}
            ranks.append(subprocess.Popen(command, env=os.environ | world | own, start_new_session=True))
        return _wait(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    deadline: float | None = None
    while True:
        codes = [process.poll() for process in ranks]
        if all(code is not None for code in codes):
            break
        failed = any(code for code in codes) or codes[0] is not None
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    first = ranks[0].poll()
    others = next((code for code in codes[1:] if code), 0)
    code = first if first is not None else others or 1
    return code if code >= 0 else 128 - code
