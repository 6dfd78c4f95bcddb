"""``python -m benchmarks.sandbox [NAME ...] [--quick] [--peers-python PATH]``"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from benchmarks.runner import given, module, report
from benchmarks.sandbox.context import Context
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
    asked = given("sandbox", MEASUREMENTS, arguments, peers=True)
    with asyncio.Runner() as loop:
        context = loop.run(_context(asked.quick, asked.peers_python))
        return report(asked.names, lambda name: loop.run(module("sandbox", name).measure(context)), asked.quick)


async def _context(quick: bool, peers_python: str) -> Context:
    """The providers that work here, which are named, and why the others don't."""
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
    return Context(docker, without, tuple(others), quick, peers_python)


if __name__ == "__main__":
    sys.exit(main())
