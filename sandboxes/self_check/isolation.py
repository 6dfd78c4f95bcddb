"""Checks of what the workload cannot do."""

from __future__ import annotations

import contextlib

from sandboxes.contract import Sandbox
from sandboxes.self_check.ending import PATIENCE
from sandboxes.self_check.expectations import CheckFailed, expect, processes, python


async def the_workload_has_no_rights(sandbox: Sandbox) -> None:
    for run in (sandbox.run_python("print(open('/proc/self/status').read())"), sandbox.exec("cat /proc/self/status")):
        status = dict(line.split(":\t", 1) for line in (await run).text.splitlines() if ":\t" in line)
        expect(set(status["Uid"].split()) == {"1000"}, "user 1000", status["Uid"])
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            expect(int(status[name], 16) == 0, f"{name} empty", status[name])
        expect(status["NoNewPrivs"].strip() == "1", "no new privileges", status["NoNewPrivs"])
    result = await python(sandbox, "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))")
    expect(result.stdout == b"[0, 1, 2, 3]\n", "descriptors 0 to 2 and the listing's own", result)


async def only_the_writable_places_can_be_written(sandbox: Sandbox) -> None:
    attempt = """
import os
written = []
for top in '/ /etc /usr /usr/bin /bin /lib /dev /root /var /var/tmp /run /home /opt /proc/sys/kernel'.split():
    try:
        open(top + '/planted', 'w').close(); written.append(top)
    except OSError:
        pass
for place in ('/workspace', '/tmp', '/dev/shm'):
    open(place + '/mine', 'w').close()
print(written)
"""
    result = await python(sandbox, attempt)
    expect(result.stdout == b"[]\n", "a read-only system", result)


async def there_is_no_network(sandbox: Sandbox) -> None:
    attempt = """
import errno, socket
with open('/proc/net/dev') as file:
    names = [line.split(':')[0].strip() for line in file if ':' in line]
print([name for name in names if not name.startswith(('lo', 'sit', 'tunl', 'gre', 'ip6', 'erspan', 'ip_vti'))])
for address in (('192.0.2.1', 80), ('8.8.8.8', 53)):
    try:
        socket.create_connection(address, 2)
        print('connected')
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""
    result = await python(sandbox, attempt)
    expect(result.stdout == b"[]\nENETUNREACH\nENETUNREACH\n", "no interface, no route", result)


async def dangerous_system_calls_are_denied(sandbox: Sandbox) -> None:
    attempt = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), errno.errorcode[ctypes.get_errno()])
print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), errno.errorcode[ctypes.get_errno()])
print(libc.ptrace(16, 1, 0, 0), errno.errorcode[ctypes.get_errno()])
print(libc.syscall(425, 8, bytes(120)), errno.errorcode[ctypes.get_errno()])
print(libc.setns(0, 0), errno.errorcode[ctypes.get_errno()])
"""
    result = await python(sandbox, attempt)
    expect(result.stdout == b"-1 EPERM\n" * 5, "EPERM for each", result)


async def a_memory_hog_dies_and_the_sandbox_lives(sandbox: Sandbox) -> None:
    result = await sandbox.run_python(
        "print('hog', flush=True)\nx = []\nwhile True:\n    x.append(bytearray(1 << 22))", timeout=30
    )
    expect(result.stdout == b"hog\n" and result.exit_code in (-9, 1) and not result.timed_out, "a killed hog", result)
    await python(sandbox, "print(1)")


async def a_fork_bomb_ends_with_its_time_out(sandbox: Sandbox) -> None:
    bomb = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print('bomb', flush=True)
seen = False
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        if not seen:
            seen = True
            os.write(2, b'full\\n')
"""
    before = await processes(sandbox)
    for patience in PATIENCE:
        result = await sandbox.run_python(bomb, timeout=patience)
        if b"full" in result.stderr:
            break
    expect(
        result.stdout.startswith(b"bomb") and b"full" in result.stderr, "a bomb that reached the limit (the control)", result
    )
    expect(result.timed_out, "a time-out", result)
    expect(await processes(sandbox) == before, "no process left", before)


async def full_places_are_the_workloads_own_problem(sandbox: Sandbox) -> None:
    fill = """
import errno
for place in ('/workspace', '/tmp', '/dev/shm'):
    try:
        with open(place + '/full', 'wb', buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    result = await python(sandbox, fill, timeout=60)
    expect(set(result.text.split()) <= {"ENOSPC", "EFBIG"} and len(result.text.split()) == 3, "no space three times", result)
    with contextlib.suppress(OSError):
        await sandbox.write_file("more", bytes(4 << 20))
        raise CheckFailed("a write beyond the size was accepted")
    await python(sandbox, "print(1)")
