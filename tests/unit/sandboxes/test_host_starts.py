"""Slots for starts, shared by processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from sandboxes.starts import HostStarts

HOLDER = """
import asyncio, sys
from pathlib import Path
from sandboxes.starts import HostStarts

async def main():
    async with HostStarts(1, Path(sys.argv[1])).slot():
        print("held", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_slots__no_more_than_the_limit_over_all_holders(tmp_path: Path) -> None:
    now, most = 0, 0

    async def start(starts: HostStarts) -> None:
        nonlocal now, most
        async with starts.slot():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.002)
            now -= 1

    pools = [HostStarts(2, tmp_path) for _ in range(4)]
    await asyncio.gather(*(start(starts) for starts in pools for _ in range(3)))
    assert most == 2


async def test_slot__of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    entered = asyncio.Event()

    async def start() -> None:
        async with HostStarts(1, tmp_path).slot():
            entered.set()

    waiting = asyncio.ensure_future(start())
    await asyncio.sleep(0.1)
    assert not entered.is_set(), "the control: another process holds it"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    await asyncio.wait_for(waiting, 20)


async def test_slot__without_a_place_for_files_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    starts = HostStarts(1, tmp_path / "file" / "below")
    async with asyncio.timeout(5), starts.slot(), starts.slot():
        pass
