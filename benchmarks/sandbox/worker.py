"""A worker to be killed: plays episodes, four at once, and prints a line for each that ended."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.sandbox.context import SPEC
from sandboxes.bubblewrap import Bubblewrap
from sandboxes.docker import Docker
from sandboxes.ownership import Owner
from sandboxes.pool import Pool


async def main(name: str, url: str, count: int) -> None:
    """Up to ``count`` episodes."""
    provider = Bubblewrap() if name == "bubblewrap" else await Docker.connect(name, url)
    print(json.dumps(Owner.current().prefix), flush=True)
    pool = Pool(provider, 4)

    async def episode() -> None:
        async with pool.acquire(SPEC) as sandbox:
            await sandbox.write_file("notes", b"x" * 1000)
            await sandbox.start("sleep 300")
            await sandbox.exec("setsid sleep 300 & echo done")
            await sandbox.run_python("print(6 * 7)")
        print("episode", flush=True)

    await asyncio.gather(*(episode() for _ in range(count)))
    await pool.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
