"""The command line that the benchmark packages share: which measurements, their rows as they come, and the exit code."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from benchmarks.report import Row, machine, table

Options = Callable[[argparse.ArgumentParser], object]


def given(
    package: str,
    measurements: Mapping[str, str],
    arguments: Sequence[str] | None,
    *,
    peers: bool = False,
    options: Options = lambda _: None,
) -> argparse.Namespace:
    """What was asked of ``python -m benchmarks.PACKAGE``, checked, and one line about this machine.

    ``measurements`` has a sentence for each module of the package that can be named; ``names`` are all unless some were
    given. ``peers`` adds the interpreter of rivals, ``options`` whatever else.
    """
    listed = "\n".join(f"  {name:12s}{what}" for name, what in measurements.items())
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{package}", description=f"Measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to take (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: checks the script, measures little")
    if peers:
        parser.add_argument(
            "--peers-python", default=sys.executable, metavar="PATH",
            help=f"interpreter with benchmarks/{package}/requirements-peers.txt installed (default: this one)",
        )  # fmt: skip
    options(parser)
    found = parser.parse_args(arguments)
    if unknown := [name for name in found.names if name not in measurements]:
        parser.error(f"no measurement called {', '.join(unknown)}; there are {', '.join(measurements)}")
    if peers and shutil.which(found.peers_python) is None:
        parser.error(f"--peers-python {found.peers_python}: no such program")
    found.names = found.names or list(measurements)
    print(f"Machine: {machine()}", flush=True)
    return found


def module(package: str, name: str) -> ModuleType:
    """The module of a measurement, which may need what the others don't."""
    return importlib.import_module(f"benchmarks.{package}.{name}")


def report(names: Sequence[str], measure: Callable[[str], Sequence[Row]], quick: bool) -> int:
    """Print the rows of each measurement when it is done, so that a later one that is broken off loses nothing.

    1 when a target was missed; with ``quick`` nothing is measured well enough to say so.
    """
    header = table([])
    print(f"\n{header}", flush=True)
    missed = False
    for name in names:
        began = time.perf_counter()
        rows = measure(name)
        print("\n".join(table(rows).splitlines()[len(header.splitlines()) :]), flush=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        missed = missed or any(row.met is False for row in rows)
    return int(missed and not quick)
