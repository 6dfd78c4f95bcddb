"""``python -m benchmarks.schedules [NAME ...] [--quick]``"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from benchmarks.store.report import machine

MEASUREMENTS = {
    "pace": "each schedule on one trace: wall time, idle shares, what was dropped or carried over, lags",
    "refresh": "loading every 1st, 3rd, 5th version: share of loads, rollouts that stand still, lag",
    "reward": "the same intervals with a model that learns: reward after equal numbers of trajectories",
}


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:9s}{what}" for name, what in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schedules", description=f"Measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to take (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks the script, measures little")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement called {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    print(f"Machine: {machine()}", flush=True)
    for name in given.names or MEASUREMENTS:
        print(flush=True)
        importlib.import_module(f"benchmarks.schedules.{name}").measure(given.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
