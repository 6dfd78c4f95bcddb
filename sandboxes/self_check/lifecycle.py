"""Checks of providers: reset, death, refusal."""

from __future__ import annotations

import asyncio
import contextlib

from sandboxes.contract import Provider, SandboxDied, SandboxSpec, SandboxUnsupported
from sandboxes.self_check.ending import STUBBORN
from sandboxes.self_check.expectations import CheckFailed, expect, python

RESIDUE = """
import ctypes, mmap, os, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
for place in {places!r}:
    os.makedirs(place + '/.hidden/b/c'); open(place + '/.hidden/b/c/file', 'w').write('secret')
    os.chmod(place + '/.hidden/b', 0); os.symlink('/etc/passwd', place + '/link'); os.mkfifo(place + '/fifo')
here = os.getcwd()
for level in range(600):
    os.mkdir('d'); os.chdir('d')
os.chdir(here)
for number in range(2000):
    open('many%d' % number, 'w').close()
made = [libc.shmget(7, 4096, 0o1666), libc.msgget(7, 0o1666), libc.semget(7, 1, 0o1666)]
print('residue', min(made))
"""

_CANCELLATIONS = 10
"""How many times a command is cancelled at the moment of its start: a stray one needs some luck to get away."""

LOOK = """
import os
found = [os.path.join(place, name) for place in {places!r} for name in os.listdir(place)]
for kind in ('shm', 'msg', 'sem'):
    found += open('/proc/sysvipc/' + kind).read().splitlines()[1:]
print(found)
"""


async def reset_leaves_nothing(provider: Provider, spec: SandboxSpec) -> None:
    sandbox = await provider.create(spec)
    try:
        isolated = provider.capabilities.network_isolated
        places = ("/workspace", "/tmp", "/dev/shm") if isolated else (".",)
        result = await python(sandbox, RESIDUE.format(places=places))
        expect(result.text.startswith("residue") and int(result.text.split()[1]) >= 0, "residue (the control)", result)
        before = (await python(sandbox, LOOK.format(places=places))).text
        expect(".hidden" in before and (not isolated or "1666" in before), "residue that can be seen (the control)", before)
        running = asyncio.ensure_future(sandbox.run_python(STUBBORN, timeout=60))
        await asyncio.sleep(1)
        expect(await provider.reset(sandbox), "a certain reset")
        with contextlib.suppress(SandboxDied):
            expect((await running).exit_code in (-9, None), "an end for the running command")
        after = (await python(sandbox, LOOK.format(places=places))).text
        expect(after == "[]\n" or not isolated, "nothing", after)
        expect(await provider.reset(sandbox), "a certain second reset")
    finally:
        await provider.destroy(sandbox)


async def jobs_end_with_their_episode(provider: Provider, spec: SandboxSpec) -> None:
    if not provider.capabilities.resets:
        return
    sandbox = await provider.create(spec)
    try:
        job = await sandbox.start("while :; do echo beat > beat; sleep 0.05; done")
        for _ in range(200):
            if any(entry.name == "beat" for entry in await sandbox.list_dir()):
                break
            await asyncio.sleep(0.02)
        expect((await job.poll()).running, "a job (the control)")
        expect(await provider.reset(sandbox), "a certain reset")
        expect(await sandbox.list_dir() == [], "nothing that goes on writing")
        with contextlib.suppress(ProcessLookupError):
            raise CheckFailed(f"the job of an episode that is over answered {await job.poll()!r}")
    finally:
        await provider.destroy(sandbox)


async def a_cancelled_command_does_not_run_in_the_next_episode(provider: Provider, spec: SandboxSpec) -> None:
    if not provider.capabilities.resets:
        return
    sandbox = await provider.create(spec)
    try:
        for _ in range(_CANCELLATIONS):
            running = [asyncio.ensure_future(sandbox.exec(["sh", "-c", "echo > stray; sleep 60"])) for _ in range(4)]
            await asyncio.sleep(0)  # they are asked for; the reset follows before they have begun
            for command in running:
                command.cancel()
            expect(await provider.reset(sandbox), "a certain reset")
            await python(sandbox, "import time\ntime.sleep(0.05)")
            expect(await sandbox.list_dir() == [], "no file of a command of the episode before")
    finally:
        await provider.destroy(sandbox)


async def a_dead_sandbox_is_an_error_not_a_result(provider: Provider, spec: SandboxSpec) -> None:
    sandbox = await provider.create(spec)
    running = asyncio.ensure_future(sandbox.run_python("import time; time.sleep(60)", timeout=60))
    await sandbox.ping()
    await provider.destroy(sandbox)
    for call in (running, sandbox.run_python("pass"), sandbox.read_file("x"), sandbox.ping()):
        with contextlib.suppress(SandboxDied):
            raise CheckFailed(f"a dead sandbox answered {await call!r}")
    await provider.destroy(sandbox)


async def a_spec_beyond_enforcement_is_refused(provider: Provider, spec: SandboxSpec) -> None:
    for impossible in (SandboxSpec(memory_mb=16), SandboxSpec(cpus=0.0), SandboxSpec(ttl_s=-1.0)):
        with contextlib.suppress(SandboxUnsupported):
            await provider.destroy(await provider.create(impossible))
            raise CheckFailed(f"{impossible} was accepted")


async def the_digest_is_stable(provider: Provider, spec: SandboxSpec) -> None:
    first = await provider.digest(spec)
    expect(first and first == await provider.digest(spec), "one digest", first)
