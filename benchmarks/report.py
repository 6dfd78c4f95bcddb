"""Rows of the printed table, and how rounds are summed up."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what was measured, against what, and whether the target is met (None: no target, or nothing to compare)."""

    name: str
    value: str
    against: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one round: wall time and this process's CPU time."""

    wall: float
    cpu: float = 0.0


def timed(work: Callable[[], object]) -> Sample:
    """Wall and client CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(rounds: int, variants: Mapping[str, Callable[[], Sample]]) -> dict[str, Sample]:
    """Each round runs every variant once; the best wall time and the median CPU time of each."""
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            samples[name].append(run())
    return {
        name: Sample(min(s.wall for s in taken), statistics.median(s.cpu for s in taken)) for name, taken in samples.items()
    }


def at_most(name: str, value: str, against: str, ratio: float, bound: float) -> Row:
    return Row(name, value, against, ratio, f"<= {bound:g}", ratio <= bound)


def at_least(name: str, value: str, against: str, ratio: float, bound: float) -> Row:
    return Row(name, value, against, ratio, f">= {bound:g}", ratio >= bound)


def table(rows: Iterable[Row]) -> str:
    """The rows as a markdown table."""
    lines = ["| measurement | value | compared with | ratio | target | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = {None: "", True: "yes", False: "no"}[row.met]
        lines.append(f"| {row.name} | {row.value} | {row.against} | {ratio} | {row.target} | {met} |")
    return "\n".join(lines)


def machine() -> str:
    """One line about this machine."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{psutil.cpu_count()} cores ({_processor()}), {memory:.0f} GiB memory, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load {psutil.getloadavg()[0]:.1f} at the start"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
