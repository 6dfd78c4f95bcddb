"""SWE-ReX's local runtime, which has no container at all, against commands in a sandbox: measured by its own interpreter."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess

from benchmarks.report import Row
from benchmarks.sandbox.context import SPEC, Context, milliseconds, times

INSTALL = "pip install -r benchmarks/sandbox/requirements-peers.txt"
_SCRIPT = """
import asyncio, json, sys, time
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, WriteFileRequest
from swerex.runtime.local import LocalRuntime

async def taken(call, count):
    found = []
    for _ in range(count):
        started = time.perf_counter()
        await call()
        found.append(time.perf_counter() - started)
    return found

async def main(count):
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    result = {
        "command": await taken(lambda: runtime.execute(Command(command=["sh", "-c", "echo hi"])), count),
        "session": await taken(lambda: runtime.run_in_session(BashAction(command="echo hi")), max(3, count // 4)),
        "write": await taken(lambda: runtime.write_file(WriteFileRequest(path="/tmp/swerex-file", content="x" * 4096)), count),
    }
    await runtime.close()
    print(json.dumps(result))

asyncio.run(main(int(sys.argv[1])))
"""


async def measure(context: Context) -> list[Row]:
    """A row a call, or one that says why it can't be measured."""
    count = context.size(60, 5)
    command = [context.peers_python, "-c", _SCRIPT, str(count)]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=300)
    if ran.returncode != 0:
        why = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        return [Row("against SWE-ReX's local runtime", "not measured", f"it can't run here ({why:.200}): {INSTALL}")]
    theirs: dict[str, list[float]] = json.loads(ran.stdout.strip().splitlines()[-1])
    rows = []
    for provider in context.providers:
        sandbox = await provider.create(SPEC)
        command_s = await times(lambda sandbox=sandbox: sandbox.exec("echo hi"), count)  # type: ignore[misc]
        write_s = await times(lambda sandbox=sandbox: sandbox.write_file("file", b"x" * 4096), count)  # type: ignore[misc]
        await provider.destroy(sandbox)
        for what, name, ours in (
            ("command", "execute, a process on the host", command_s),
            ("session", "run_in_session, a shell on the host", command_s),
            ("write", "write_file on the host", write_s),
        ):
            ratio = statistics.median(ours) / statistics.median(theirs[what])
            task = "4 KB file write" if what == "write" else "command"
            rows.append(
                Row(f"{task} in {provider.name}", milliseconds(ours), f"SWE-ReX {name}: {milliseconds(theirs[what])}", ratio)
            )
    return rows
