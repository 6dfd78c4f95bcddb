"""``python -m benchmarks.rollout [NAME ...] [--quick]``"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from benchmarks.store.report import Row, machine, table

MEASUREMENTS = {
    "engine": "tokens a second of the in-process engine against transformers' generate, sequences of unequal length",
    "worker": "CPU and memory of one worker process with 512 concurrent episodes",
    "schedule": "asynchronous against synchronous on the same long-tailed work, for five lag bounds",
}


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:12s}{what}" for name, what in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollout", description=f"Measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to take (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks the script, measures little")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement called {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    print(f"Machine: {machine()}\n", flush=True)
    rows: list[Row] = []
    for name in given.names or MEASUREMENTS:
        rows += importlib.import_module(f"benchmarks.rollout.{name}").measure(given.quick)
    print(table(rows))
    return 1 if any(row.met is False for row in rows) and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
