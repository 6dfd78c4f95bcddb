"""Checks of files written and read from outside."""

from __future__ import annotations

import contextlib
from functools import partial

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


async def paths_that_no_system_takes_are_refused(sandbox: Sandbox) -> None:
    for path in ("a\0b", "new/a\0b", "\ud800", "/tmp/\udfff"):
        for call in (sandbox.read_file, sandbox.stat, sandbox.list_dir, partial(sandbox.write_file, data=b"x")):
            with contextlib.suppress(OSError):
                raise CheckFailed(f"{path!r} was taken by {call!r:.100}, which answered {await call(path)!r:.100}")
    await sandbox.ping()


async def directories_are_listed_and_described(sandbox: Sandbox) -> None:
    expect(await sandbox.list_dir() == [], "an empty workspace")
    await sandbox.write_file("deep/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    expect((await sandbox.exec("deep/run.sh")).stdout == b"ran\n", "a file that can be executed")
    await python(sandbox, PREPARED + "open(b'odd\\xff\\n', 'w').close()")
    found = {entry.name: entry for entry in await sandbox.list_dir("/workspace")}
    kinds = {name: entry.kind for name, entry in found.items()}
    odd = b"odd\xff\n".decode("utf-8", "surrogateescape")
    named = {"big": "file", "deep": "directory", "dir": "directory", "fifo": "other", "link": "link", "passwd": "link"}
    expect(kinds == {**named, odd: "file"}, "kinds by name", kinds)
    expect(list(found) == sorted(found), "sorted names", list(found))
    expect(found["big"].size == 5000 and found["big"].modified > 1e9, "size and time", found["big"])
    script = await sandbox.stat("deep/run.sh")
    expect((script.name, script.kind, script.mode) == ("run.sh", "file", 0o755), "its status", script)
    expect((await sandbox.stat("link")).kind == "link", "the link itself")
    expect((await sandbox.stat(".")).kind == "directory", "the workspace itself")
    expect([entry.name for entry in await sandbox.list_dir("deep")] == ["run.sh"], "an inner directory")
    for path, kind in {"missing": FileNotFoundError, "big": NotADirectoryError, "link": OSError, "/etc": OSError}.items():
        with contextlib.suppress(kind):
            raise CheckFailed(f"{path} was listed: {await sandbox.list_dir(path)!r:.200}")
    with contextlib.suppress(ValueError):
        raise CheckFailed(f"beyond the cap: {len(await sandbox.list_dir(max_entries=3))} entries")
    for path in ("missing", "/etc/passwd", "link/passwd"):
        with contextlib.suppress(OSError):
            raise CheckFailed(f"{path} was described: {await sandbox.stat(path)!r:.200}")
