"""``python -m benchmarks.store [NAME ...] [--quick] [--url URL] [--peers-python PATH]``"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import time
from collections.abc import Sequence

from benchmarks.store.context import Context
from benchmarks.store.report import Row, machine, table
from benchmarks.store.server import describe, server

MEASUREMENTS = {
    "writes": "fenced segment writes against raw COPY",
    "claims": "claim, read and acknowledge with 1,000 and 100,000 stored trajectories, and under a pinned transaction",
    "peers": "client CPU against Trinity-RFT and TransferQueue",
    "sizes": "stored bytes against two JSON layouts",
    "memory": "client memory for a 500,000-token trajectory",
    "many": "4,096 open episodes from 8 processes",
    "saturation": "where one Postgres saturates",
}


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:12s}{what}" for name, what in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store", description=f"Measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to take (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: checks the script, measures little")
    parser.add_argument("--url", help="a server on which a database may be created and dropped (default: a private server)")
    parser.add_argument(
        "--peers-python", default=sys.executable, metavar="PATH",
        help="interpreter with benchmarks/store/requirements-peers.txt installed (default: this one)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement called {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    if shutil.which(given.peers_python) is None:
        parser.error(f"--peers-python {given.peers_python}: no such program")
    print(f"Machine: {machine()}")
    rows: list[Row] = []
    with server(given.url) as url:
        print(describe(url) + "\n", flush=True)
        context = Context(url, given.quick, given.peers_python)
        for name in given.names or MEASUREMENTS:
            began = time.perf_counter()
            rows += importlib.import_module(f"benchmarks.store.{name}").measure(context)
            print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(rows))
    return 1 if any(row.met is False for row in rows) and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
