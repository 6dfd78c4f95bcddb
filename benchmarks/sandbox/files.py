"""Writing 4 KB into a sandbox against the engine's archive call."""

from __future__ import annotations

import asyncio
import io
import statistics
import tarfile
from concurrent.futures import ThreadPoolExecutor

from benchmarks.report import Row, at_most
from benchmarks.sandbox.context import SPEC, Context, milliseconds, times

DATA = bytes(range(256)) * 16


async def measure(context: Context) -> list[Row]:
    """The archive call can't write to a read-only system or to a memory file system: it gets a container of its own."""
    if context.docker is None:
        return [Row("4 KB file write", "not measured", context.without)]
    client, threads = context.client(), ThreadPoolExecutor(1)
    image = await context.docker.digest(SPEC)
    sandbox = await context.docker.create(SPEC)
    rival = client.containers.run(image, ["sleep", "600"], network_mode="none", detach=True, auto_remove=True)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = len(DATA)
        tar.addfile(entry, io.BytesIO(DATA))

    async def put() -> None:
        done = await asyncio.get_running_loop().run_in_executor(threads, rival.put_archive, "/tmp", archive.getvalue())
        assert done

    writes: list[float] = []
    puts: list[float] = []
    try:
        for _ in range(context.size(6, 1)):
            writes += await times(lambda: sandbox.write_file("file", DATA), context.size(100, 5))
            puts += await times(put, context.size(12, 3))
        assert await sandbox.read_file("file") == DATA
    finally:
        rival.remove(force=True)
        await context.docker.destroy(sandbox)
        threads.shutdown()
    ratio = statistics.median(writes) / statistics.median(puts)
    return [at_most("4 KB file write", milliseconds(writes), f"put_archive: {milliseconds(puts)}", ratio, 0.02)]
