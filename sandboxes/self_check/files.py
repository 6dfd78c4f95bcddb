"""Checks of files written and read from outside."""

from __future__ import annotations

import contextlib

from sandboxes.contract import Sandbox
from sandboxes.self_check.expectations import CheckFailed, expect, python


async def files_are_written_and_read(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 5000
    for path in ("plain", "deep/er/file", "/workspace/absolute", "/tmp/elsewhere"):
        await sandbox.write_file(path, data)
        expect(await sandbox.read_file(path) == data, f"{path} as written")
    await sandbox.write_file("plain", b"")
    expect(await sandbox.read_file("plain") == b"", "a shorter file after a second write")
    result = await python(
        sandbox, "import os\nprint(os.stat('absolute').st_uid == os.getuid(), os.stat('deep').st_uid == os.getuid())"
    )
    expect(result.stdout == b"True True\n", "files of the workload's own", result)


PREPARED = """
import os
os.mkdir('dir')
os.mkfifo('fifo')
os.symlink('/etc', 'link')
os.symlink('/etc/passwd', 'passwd')
open('big', 'w').truncate(5000)
"""


async def files_out_of_reach_are_refused(sandbox: Sandbox) -> None:
    await python(sandbox, PREPARED)
    for path, kind in {"missing": FileNotFoundError, "no/dir": FileNotFoundError, "dir": IsADirectoryError}.items():
        with contextlib.suppress(kind):
            raise CheckFailed(f"{path} was read: {await sandbox.read_file(path)!r:.100}")
    with contextlib.suppress(ValueError):
        raise CheckFailed(f"beyond the cap: {len(await sandbox.read_file('big', max_bytes=4999))} bytes")
    for path in ("/etc/passwd", "../etc/passwd", "/workspace/../etc/passwd", "link/passwd", "passwd", "fifo", "/proc/1/mem"):
        with contextlib.suppress(OSError):
            raise CheckFailed(f"{path} was read: {await sandbox.read_file(path)!r:.100}")
        with contextlib.suppress(OSError):
            await sandbox.write_file(path, b"planted")
            raise CheckFailed(f"{path} was written")
