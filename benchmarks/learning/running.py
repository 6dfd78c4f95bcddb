"""Runs one cell as a user would, and measures its processes.

CPU seconds are of those that the run's processes wait for: launcher, trainer, rollout and evaluation workers; the warm start is
taken out. Sandboxes are killed, not waited for, so what ran in them is in no sum, and neither is the database.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from agentrl.cli.session import database_session
from agentrl.launch.disk import runs_folder
from benchmarks.learning.cells import Cell
from benchmarks.learning.outcome import read_outcome

SAMPLE_S = 10.0
"""Between two looks at the memory: one of them takes the kernel 50 ms of a core."""


class CellFailed(Exception):
    """The run of a cell did not finish; the message says where its output is."""


def run_cell(cell: Cell, size: Sequence[str], logs: Path) -> dict[str, Any]:
    """Run ``agentrl train`` to its end. Returns one row: `read_outcome`, ``cpu_s``, ``peak_mb`` and the run's name.

    Rows, logs and the first model of the run stay; its weights and checkpoints are removed. ``cpu_s`` holds neither sandboxes
    nor the database; ``peak_mb`` is the most that was seen every `SAMPLE_S`, sandboxes included.
    """
    name = f"learning-{cell.control or cell.preset}-s{cell.seed}-{uuid.uuid4().hex[:8]}"
    module = ["agentrl.cli.main"] if cell.control is None else ["benchmarks.learning.controls", cell.control]
    command = [sys.executable, "-m", *module, *cell.arguments(size), "--name", name]
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    with database_session() as url:
        environment = {**os.environ, "AGENTRL_DATABASE_URL": url}
        used = _children_cpu_s()
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        peak = _watch(process)
        if process.returncode:
            raise CellFailed(f"{' '.join(command)} ended with code {process.returncode}; its output is in {log}")
        folder = runs_folder() / name
        spent = _children_cpu_s() - used - _warm_start_cpu_s(folder)
        row = {"run": name, **read_outcome(url, name), "cpu_s": spent, "peak_mb": peak / 2**20}
    for bulky in ("weights", "checkpoints"):
        shutil.rmtree(folder / bulky)
    return row


def _watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end; the most memory that the process and all below it were seen to have at once, in bytes."""
    peak = 0
    try:
        while process.returncode is None:
            peak = max(peak, _tree_memory(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_S)
    finally:
        process.wait()  # Ctrl-C reached the run too: it saves and ends
    return peak


def _tree_memory(pid: int) -> int:
    """Proportional set size of a process and its descendants: pages that several of them share count once."""
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            total += process.memory_info().rss
    return total


def _children_cpu_s() -> float:
    """CPU seconds of all ended descendants that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _warm_start_cpu_s(folder: Path) -> float:
    """What the trainer had used when its model was ready: nothing much when the model came from the cache."""
    lines = (folder / "logs" / "trainer.jsonl").read_text().splitlines()
    ready = next(line for line in map(json.loads, lines) if line["event"] == "model ready")
    return float(ready["cpu_s"] + ready["children_cpu_s"])
