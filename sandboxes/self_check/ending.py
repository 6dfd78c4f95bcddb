"""Checks of how commands end, and of what goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib

from sandboxes.contract import Sandbox
from sandboxes.self_check.expectations import expect, processes

PATIENCE = (2, 8, 30)
"""Time-outs to try in turn, in seconds, where an attack must have got somewhere before its end: machines may be busy."""

STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(['sleep', '300'])
subprocess.Popen(['setsid', 'sleep', '300'])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.2)
    os._exit(0)
time.sleep(0.3)
print('processes', sum(n.isdigit() for n in os.listdir('/proc')), flush=True)
time.sleep(300)
"""


async def a_time_out_ends_the_whole_tree(sandbox: Sandbox) -> None:
    before = await processes(sandbox)
    started = 0
    for patience in PATIENCE:
        result = await sandbox.run_python(STUBBORN, timeout=patience)
        expect(result.timed_out and result.exit_code in (-9, None), "a time-out", result)
        started = int(result.text.split()[1]) if result.text.startswith("processes") else 0
        if started:
            break
    expect(started >= before + 3, "a command with three processes more (the control)", result)
    expect(await processes(sandbox) == before, "no process left", before)
    result = await sandbox.exec("sleep 300 & exec sleep 300", timeout=0.5)
    expect(result.timed_out and await processes(sandbox) == before, "no process left of a shell", result)


async def what_a_command_leaves_behind_ends_with_it(sandbox: Sandbox) -> None:
    before = await processes(sandbox)
    result = await sandbox.exec("sleep 300 & setsid sleep 300 & echo started")
    expect(result.stdout == b"started\n" and result.duration_s < 20, "a return although a job holds the output", result)
    expect(await processes(sandbox) == before, "no process left", before)


async def files_and_pings_go_on_while_a_command_runs(sandbox: Sandbox) -> None:
    waiter = "import os, time\nopen('ready', 'w').close()\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('went')"
    running = asyncio.ensure_future(sandbox.run_python(waiter, timeout=20))
    await sandbox.ping()
    for _ in range(500):
        with contextlib.suppress(FileNotFoundError):
            await sandbox.read_file("ready")
            break
        await asyncio.sleep(0.02)
    await sandbox.write_file("go", b"")
    result = await running
    expect(result.stdout == b"went\n", "a command that saw the file written meanwhile", result)


async def overlapping_commands_keep_their_own_output_and_end(sandbox: Sandbox) -> None:
    waiter = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('slow')"
    slow = asyncio.ensure_future(sandbox.run_python(waiter, timeout=60))
    late = asyncio.ensure_future(sandbox.exec("echo late; sleep 60", timeout=3))
    quick = await sandbox.exec("echo quick")
    expect(quick.stdout == b"quick\n" and not quick.timed_out, "an end of its own", quick)
    expect((await late).timed_out and (await late).stdout == b"late\n", "a time-out of its own", await late)
    await sandbox.write_file("go", b"")
    expect((await slow).stdout == b"slow\n", "a command that outlived both", await slow)


async def a_silent_command_ends_at_its_own_limit(sandbox: Sandbox) -> None:
    before = await processes(sandbox)
    result = await sandbox.exec("echo working; setsid sleep 300 & sleep 300", timeout=60, no_output_timeout=1.0)
    expect(result.timed_out and result.stdout == b"working\n", "an end, with the output so far", result)
    expect((result.limit, result.limit_s) == ("no_output_timeout", 1.0), "the limit that ended it", result)
    expect(result.duration_s < 50, "the time measured, not the outer limit", result)
    expect(await processes(sandbox) == before, "no process left", before)
    for silence in (1.5, 6.0):  # on a busy machine a pause may be longer than it was meant to be
        talk = f"n=0; while [ $n -lt {silence / 0.25:.0f} ]; do n=$((n+1)); echo $n; sleep 0.3; done"
        result = await sandbox.exec(talk, no_output_timeout=silence)
        if not result.timed_out:
            break
    expect(result.exit_code == 0 and not result.timed_out and not result.limit, "no end for one that goes on printing", result)
    result = await sandbox.exec("while :; do echo busy; sleep 0.05; done", timeout=1.0, no_output_timeout=30)
    expect((result.limit, result.limit_s) == ("timeout", 1.0), "the outer limit by its own name", result)
