"""``python -m benchmarks.sandbox [NAME ...] [--quick] [--peers-python PATH]``"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import shutil
import sys
import time
from collections.abc import Sequence

from benchmarks.sandbox.context import Context
from benchmarks.store.report import Row, machine, table
from sandboxes.bubblewrap import Bubblewrap
from sandboxes.contract import Provider, SandboxUnavailable
from sandboxes.docker import Docker

MEASUREMENTS = {
    "commands": "a command's round trip against docker exec, at 1 and at 32 at once",
    "files": "writing 4 KB against put_archive",
    "acquire": "waiting for a warm sandbox at a rate that the machine carries",
    "kills": "200 episodes in workers that are killed at random",
    "swerex": "against SWE-ReX's local runtime",
}


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:12s}{what}" for name, what in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sandbox", description=f"Measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to take (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: checks the script, measures little")
    parser.add_argument(
        "--peers-python", default=sys.executable, metavar="PATH",
        help="interpreter with benchmarks/sandbox/requirements-peers.txt installed (default: this one)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in MEASUREMENTS]:
        parser.error(f"no measurement called {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    if shutil.which(given.peers_python) is None:
        parser.error(f"--peers-python {given.peers_python}: no such program")
    print(f"Machine: {machine()}", flush=True)
    rows = asyncio.run(_measure(given.names or list(MEASUREMENTS), given.quick, given.peers_python))
    return 1 if any(row.met is False for row in rows) and not given.quick else 0


async def _measure(names: list[str], quick: bool, peers_python: str) -> list[Row]:
    docker, without = None, ""
    try:
        docker = await Docker.connect()
        print(f"docker: {docker.description}")
    except SandboxUnavailable as error:
        without = f"{error}; start one with scripts/start-docker.sh"
    others: list[Provider] = []
    try:
        bubblewrap = Bubblewrap()
        others.append(bubblewrap)
        print(f"bubblewrap: {bubblewrap.description}")
    except SandboxUnavailable as error:
        print(f"bubblewrap: {error}")
    header = table([])
    print(f"\n{header}", flush=True)
    context = Context(docker, without, tuple(others), quick, peers_python)
    rows: list[Row] = []
    for name in names:
        began = time.perf_counter()
        measured = await importlib.import_module(f"benchmarks.sandbox.{name}").measure(context)
        # At once: a later measurement that is broken off loses nothing.
        print("\n".join(table(measured).splitlines()[len(header.splitlines()) :]), flush=True)
        rows += measured
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
