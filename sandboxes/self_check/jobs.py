"""Checks of jobs: commands that go on while others run."""

from __future__ import annotations

from sandboxes.contract import Sandbox
from sandboxes.self_check.expectations import expect, processes

SERVER = "i=0; while :; do i=$((i+1)); echo $i > beat; sleep 0.05; done"


async def jobs_go_on_while_commands_come_and_go(sandbox: Sandbox) -> None:
    job = await sandbox.start(f"echo up; cat; {SERVER}", stdin=b"given", env={"NAME": "x"})
    quick = await sandbox.exec("sleep 0.3; echo quick")
    expect(quick.stdout == b"quick\n", "a command beside it", quick)
    late = await sandbox.exec("sleep 60", timeout=0.5)
    expect(late.timed_out, "a time-out beside it", late)
    beats = [await _beat(sandbox, 0)]
    beats.append(await _beat(sandbox, beats[0]))
    expect(0 < beats[0] < beats[1], "a job that outlived these commands", beats)
    status = await job.poll()
    expect(status.running and status.exit_code is None and status.stdout == b"up\ngiven", "its output so far", status)
    status = await job.wait(0.2)
    expect(status.running, "no end by waiting", status)
    await job.kill()
    short = await sandbox.start("echo done; exit 7")
    ended = await short.wait(30)
    expect((ended.exit_code, ended.stdout, ended.running) == (7, b"done\n", False), "its end", ended)
    expect(await short.poll() == ended, "the same end when asked again", ended)


async def _beat(sandbox: Sandbox, after: int) -> int:
    for _ in range(100):
        seen = (await sandbox.exec("sleep 0.1; cat beat")).text.strip()
        if seen.isdigit() and int(seen) > after:
            return int(seen)
    return 0


async def jobs_end_by_a_kill(sandbox: Sandbox) -> None:
    before = await processes(sandbox)
    first = await sandbox.start("trap '' TERM HUP INT; sleep 300 & sleep 300")
    second = await sandbox.start("sleep 300")
    for _ in range(100):
        if await processes(sandbox) >= before + 4:
            break
    expect(await processes(sandbox) >= before + 4, "two jobs (the control)", before)
    ended = await first.kill()
    expect(ended.exit_code == -9 and not ended.running, "an end", ended)
    expect((await second.poll()).running, "one job that goes on")
    await sandbox.kill_all()
    ended = await second.wait(30)
    expect(ended.exit_code == -9, "an end with all others", ended)
    expect(await processes(sandbox) == before, "no process left", before)
