"""A command's round trip against `docker exec`, at 1 and at 32 at once."""

from __future__ import annotations

import asyncio
import statistics
from concurrent.futures import ThreadPoolExecutor

from benchmarks.report import Row, at_most
from benchmarks.sandbox.context import SPEC, Context, milliseconds, times
from sandboxes.contract import Sandbox
from sandboxes.handle import Handle

COMMAND = "echo hi"
_CODE = "print('hi')"
_AT_ONCE = 32


async def measure(context: Context) -> list[Row]:
    """Rows at both concurrencies, and for a run of Python."""
    if context.docker is None:
        return [Row("command round trip", "not measured", context.without)]
    client, threads = context.client(), ThreadPoolExecutor(_AT_ONCE)
    starts = asyncio.Semaphore(2)

    async def start() -> Handle:
        async with starts:
            assert context.docker is not None
            return await context.docker.create(SPEC)

    made = await asyncio.gather(*(start() for _ in range(context.size(_AT_ONCE, 4))))
    try:

        async def execute(sandbox: Sandbox, *command: str) -> None:
            run = client.containers.get(sandbox.id).exec_run
            result = await asyncio.get_running_loop().run_in_executor(threads, lambda: run(list(command), user="1000:1000"))
            assert result.output == b"hi\n", result

        async def ours(sandbox: Sandbox) -> None:
            assert (await sandbox.exec(COMMAND)).stdout == b"hi\n"

        async def run_python(sandbox: Sandbox) -> None:
            assert (await sandbox.run_python(_CODE)).stdout == b"hi\n"

        first, rounds, calls = made[0], context.size(6, 1), context.size(20, 3)
        alone: dict[str, list[float]] = {"ours": [], "theirs": [], "python": [], "their python": []}
        for _ in range(rounds):
            alone["ours"] += await times(lambda: ours(first), calls)
            alone["theirs"] += await times(lambda: execute(first, "sh", "-c", COMMAND), calls)
            alone["python"] += await times(lambda: run_python(first), calls)
            alone["their python"] += await times(lambda: execute(first, "python3", "-c", _CODE), max(3, calls // 4))
        together: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(context.size(3, 1)):
            for taken in await asyncio.gather(*(times(lambda box=box: ours(box), calls) for box in made)):  # type: ignore[misc]
                together["ours"] += taken
            few = max(2, calls // 5)
            for taken in await asyncio.gather(*(times(lambda box=box: execute(box, "sh", "-c", COMMAND), few) for box in made)):  # type: ignore[misc]
                together["theirs"] += taken
    finally:
        await asyncio.gather(*(context.docker.destroy(sandbox) for sandbox in made))
        threads.shutdown()
    return [
        _row("command (sh -c echo), one at a time", alone["ours"], "docker exec", alone["theirs"], 0.1),
        _row(f"the same, {len(made)} at once", together["ours"], "docker exec", together["theirs"], 1 / 7),
        _row("run_python (print)", alone["python"], "docker exec python3 -c", alone["their python"], None),
    ]


def _row(name: str, ours: list[float], rival: str, theirs: list[float], bound: float | None) -> Row:
    ratio = statistics.median(ours) / statistics.median(theirs)
    value, against = milliseconds(ours), f"{rival}: {milliseconds(theirs)}"
    return Row(name, value, against, ratio) if bound is None else at_most(name, value, against, ratio, round(bound, 3))
