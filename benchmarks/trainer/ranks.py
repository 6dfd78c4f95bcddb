"""Starts a program as the ranks of one gloo world on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

TIMEOUT_S = 600


def run_ranks(module: str, arguments: Sequence[str], n: int) -> None:
    """``python -m module arguments`` n times under torchrun's environment. `RuntimeError` quotes the first rank that fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=shared | {"WORLD_SIZE": str(n), "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(n)
    ]
    try:
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=TIMEOUT_S)
            if process.returncode:
                raise RuntimeError(
                    f"rank {rank} of {n} ended with {process.returncode}: {errors.decode(errors='replace')[-3000:]}"
                )
    finally:
        for process in processes:
            process.kill()
            process.wait()
