"""Programs that attack the sandbox from inside. Each shows that its attack really ran (the control) and was of no effect.

After each of them the shared fixture runs a victim and demands a certain reset.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from sandboxes.contract import Provider, Sandbox, SandboxDied
from sandboxes.pool import Pool
from sandboxes.self_check import CHECK_SPEC
from sandboxes.self_check.expectations import processes, python

pytestmark = pytest.mark.asyncio(loop_scope="session")

DENIED = "import errno\ndef denied(act, *arguments):\n    try:\n        print('DONE', act(*arguments))\n"
DENIED += "    except OSError as error:\n        print(errno.errorcode[error.errno])\n"
LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef call(name, *arguments):\n"
LIBC += "    ctypes.set_errno(0)\n    if getattr(libc, name)(*arguments) == -1:\n"
LIBC += "        raise OSError(ctypes.get_errno(), name)\n    return 'ok'\n"
OTHERS = "import os\nothers = [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()]\n"

REFUSED = {
    "signals_to_every_other_process": (
        "import signal\nfor pid in others:\n    for number in (9, 15, 19, 20):\n        denied(os.kill, pid, number)",
        {"EPERM"},
    ),
    "limits_of_every_other_process": (
        "from resource import RLIMIT_AS, RLIMIT_CPU, RLIMIT_NOFILE, prlimit\n"
        "for pid in others:\n    for what in (RLIMIT_AS, RLIMIT_CPU, RLIMIT_NOFILE):\n"
        "        denied(prlimit, pid, what, (0, 0))",
        {"EPERM"},
    ),
    "scheduling_of_every_other_process": (
        "for pid in others:\n    denied(os.setpriority, os.PRIO_PROCESS, pid, 19)\n    denied(os.sched_setaffinity, pid, {0})\n"
        "    denied(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))",
        {"EPERM"},
    ),
    "memory_and_descriptors_of_every_other_process": (
        "for pid in others:\n    for name in ('mem', 'environ', 'fd', 'map_files', 'root/etc', 'cwd/x'):\n"
        "        denied(os.listdir if name in ('fd', 'map_files') else open, f'/proc/{pid}/{name}')",
        {"EACCES", "EPERM", "ENOENT"},
    ),
    "tracing_of_every_other_process": (
        "for pid in others:\n    denied(call, 'ptrace', 16, pid, 0, 0)\n"
        "    denied(call, 'process_vm_readv', pid, bytes(64), 1, bytes(64), 1, 0)\n"
        "    denied(call, 'syscall', 438, os.pidfd_open(pid), 0, 0)",
        {"EPERM"},
    ),
    "signals_by_other_ways": (
        "import signal\nNUMBERS = {'x86_64': (234, 424, 129), 'aarch64': (131, 424, 138)}[os.uname().machine]\n"
        "tgkill, pidfd_send_signal, rt_sigqueueinfo = NUMBERS\n"
        "for pid in others:\n    denied(call, 'syscall', tgkill, pid, pid, 9)\n"
        "    denied(call, 'syscall', pidfd_send_signal, os.pidfd_open(pid), 9, 0, 0)\n"
        "    denied(call, 'syscall', rt_sigqueueinfo, pid, 9, bytes(128))",
        {"EPERM", "ESRCH"},
    ),
    "being_traced_instead_of_ending": ("denied(call, 'ptrace', 0, 0, 0, 0)", {"EPERM"}),
    "namespaces_and_mounts": (
        "for flags in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000):\n    denied(call, 'unshare', flags)\n"
        "denied(call, 'mount', b'none', b'/tmp', b'tmpfs', 0, None)\ndenied(call, 'chroot', b'/tmp')",
        {"EPERM"},
    ),
    "control_groups_and_kernel_settings": (
        "def write(path):\n    with open(path, 'w') as file:\n        file.write('1')\n"
        "for path in ('/proc/sysrq-trigger', '/proc/sys/kernel/ns_last_pid', '/sys/fs/cgroup/pids/pids.max', "
        "'/sys/fs/cgroup/cgroup.procs', '/proc/1/oom_score_adj', '/proc/sys/kernel/core_pattern'):\n    denied(write, path)",
        {"EACCES", "EPERM", "EROFS", "ENOENT"},
    ),
    "becoming_root_again": (
        "for act in (os.setuid, os.setgid, os.seteuid):\n    denied(act, 0)\n"
        "denied(os.setgroups, [0])\ndenied(os.chown, '.', 0, 0)",
        {"EPERM"},
    ),
    "the_writable_places_themselves": (
        "for place in ('/workspace', '/tmp', '/dev/shm'):\n    denied(os.chmod, place, 0)\n    denied(os.rmdir, place)\n"
        "    denied(os.rename, place, '/tmp/moved')\n    denied(os.setxattr, place, 'user.note', b'for the next')",
        {"EPERM", "EBUSY", "EROFS", "EXDEV", "EACCES", "ENOTSUP", "EINVAL"},
    ),
    "key_rings": (
        "denied(call, 'syscall', 248, b'user', b'note', b'secret', 6, -4)\ndenied(call, 'syscall', 250, 0, -4, 1)",
        {"EPERM"},
    ),
    "its_own_place_in_the_queue_for_memory": (
        "def lower():\n    with open('/proc/self/oom_score_adj', 'w') as file:\n        file.write('0')\ndenied(lower)",
        {"EACCES", "EPERM"},
    ),
    "descriptors_of_the_protocol": ("for number in range(3, 256):\n    denied(os.write, number, b'\\0\\0\\0\\2{}')", {"EBADF"}),
}


@pytest.mark.parametrize("attack", REFUSED)
async def test_attack_on__is_refused(attack: str, sandbox: Sandbox) -> None:
    code, refusals = REFUSED[attack]
    result = await python(sandbox, DENIED + LIBC + OTHERS + code)
    answers = result.text.split("\n")[:-1]
    assert answers, "the control: nothing was attacked"
    assert set(answers) <= refusals, result


async def test_kill_of_all_processes__ends_only_the_workloads_own(sandbox: Sandbox) -> None:
    result = await python(
        sandbox, "import os, signal, subprocess\nchild = subprocess.Popen(['sleep', '60'])\nos.kill(-1, 9)\nprint(child.wait())"
    )
    assert result.stdout == b"-9\n", "the control: the child was killed"


async def test_workload_stops_itself__times_out(sandbox: Sandbox) -> None:
    result = await sandbox.run_python("import os, signal\nprint('stopping', flush=True)\nos.kill(os.getpid(), 19)", timeout=1)
    assert result.stdout == b"stopping\n"
    assert result.timed_out


async def test_child_given_to_the_workloads_parent__ends_with_the_command(sandbox: Sandbox) -> None:
    before = await processes(sandbox)
    code = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
CLONE_PARENT = 0x8000
number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
ours = os.getppid()
if libc.syscall(number, CLONE_PARENT, 0, 0, 0, 0) == 0:
    with open('sibling', 'w') as file:
        file.write(str(os.getppid() == ours))
    time.sleep(60)
while not os.path.exists('sibling') or not open('sibling').read():
    time.sleep(0.01)
print(open('sibling').read())
"""
    result = await python(sandbox, code)
    assert result.stdout == b"True\n", "the control: the clone was a sibling"
    assert await processes(sandbox) == before


async def test_zombies__are_collected(sandbox: Sandbox) -> None:
    before = await processes(sandbox)
    code = "import os\nfor _ in range(30):\n    if os.fork() == 0:\n        if os.fork() == 0:\n            os._exit(0)\n"
    code += "        os._exit(0)\n"
    result = await python(sandbox, code + "print(sum(n.isdigit() for n in os.listdir('/proc')))")
    assert int(result.text) > before + 10, "the control: there were zombies"
    assert await processes(sandbox) == before


async def test_fork_bomb_of_detaching_shells__ends_with_its_time_out(sandbox: Sandbox) -> None:
    bomb = "echo bomb; f() { setsid sh -c 'trap \"\" TERM HUP; sleep 300' & f; }; f"
    before = await processes(sandbox)
    result = await sandbox.exec(bomb, timeout=3)
    assert result.stdout.startswith(b"bomb")
    assert result.total_stderr > 0 or result.timed_out, "the control: it met the limit or its time-out"
    assert await processes(sandbox) == before


FLOOD = """
import errno, os
for place in ('/workspace', '/tmp', '/dev/shm'):
    number = 0
    try:
        while True:
            os.close(os.open(f'{place}/{number}', os.O_CREAT)); number += 1
    except OSError as error:
        print(errno.errorcode[error.errno], number > 1000)
"""


async def test_flood_of_files__leaves_the_sandbox_usable(provider: Provider, sandbox: Sandbox) -> None:
    if provider.name == "podman":
        pytest.skip("Podman takes no limit of inodes; see the next test")
    result = await python(sandbox, FLOOD, timeout=60)
    assert result.text == "ENOSPC True\n" * 3, "the control: every place was filled"


async def test_flood_of_files__costs_an_engine_without_a_limit_of_inodes_no_more_than_the_sandbox(provider: Provider) -> None:
    if provider.name != "podman":
        pytest.skip("inodes are limited here")
    pool = Pool(provider, 1)
    with suppress(SandboxDied):
        async with pool.acquire(CHECK_SPEC) as flooded:
            assert (await flooded.run_python(FLOOD, timeout=60)).oom_killed
    async with pool.acquire(CHECK_SPEC) as victim:
        assert (await victim.run_python("import os\nprint(os.listdir('.'))")).text == "[]\n"
    await pool.close()


async def test_deletion_of_everything__harms_nothing(sandbox: Sandbox) -> None:
    await sandbox.write_file("mine", b"x")
    result = await sandbox.exec(
        "rm -rf --no-preserve-root /workspace /tmp /dev/shm /bin /usr/bin /etc 2>/dev/null; ls /workspace; ls /bin/sh",
        timeout=60,
    )
    assert b"mine" not in result.stdout, "the control: what could be deleted was"
    assert b"/bin/sh" in result.stdout


async def test_own_limits_set_to_nothing__do_not_reach_the_next_run(sandbox: Sandbox) -> None:
    code = """
import resource
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK):
    resource.setrlimit(what, (0, 0))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    assert (await python(sandbox, code)).stdout == b"(0, 0)\n"
    result = await python(sandbox, "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    assert int(result.text) > 100


async def test_signal_on_input_aimed_at_the_first_process__is_not_sent(sandbox: Sandbox) -> None:
    code = """
import fcntl, os, signal, time
reading, writing = os.pipe()
fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
try:
    fcntl.fcntl(reading, fcntl.F_SETOWN, 1)
except OSError:
    pass
fcntl.fcntl(reading, 10, signal.SIGKILL)
print(fcntl.fcntl(reading, fcntl.F_GETOWN))
os.write(writing, b'x')
time.sleep(0.1)
"""
    assert (await python(sandbox, code)).stdout == b"1\n", "the control: the first process was named"


async def test_descriptors_in_a_cycle_of_sockets__do_not_survive(sandbox: Sandbox) -> None:
    code = """
import os, socket
pairs = [socket.socketpair() for _ in range(20)]
for number in range(20):
    socket.send_fds(pairs[number][0], [b'x'], [pairs[(number + 1) % 20][1].fileno()])
listener = socket.socket(socket.AF_UNIX)
listener.bind('\\0abstract')
listener.listen()
tcp = socket.socket()
tcp.bind(('127.0.0.1', 8123))
tcp.listen()
print('listening', flush=True)
if os.fork() == 0:
    os.setsid()
    while True:
        listener.accept()
"""
    assert (await python(sandbox, code)).stdout == b"listening\n"
    result = await sandbox.run_python("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0abstract')")
    assert b"ConnectionRefusedError" in result.stderr


async def test_message_queues_and_shared_memory__are_gone_after_reset(provider: Provider, sandbox: Sandbox) -> None:
    make = """
import ctypes, os
libc = ctypes.CDLL('librt.so.1', use_errno=True)
print(libc.mq_open(b'/left', os.O_CREAT | os.O_RDWR, 0o666, None) >= 0)
"""
    look = """
import ctypes, os
libc = ctypes.CDLL('librt.so.1', use_errno=True)
print(libc.mq_open(b'/left', os.O_RDWR) >= 0)
"""
    assert (await python(sandbox, make)).stdout == b"True\n"
    assert (await python(sandbox, look)).stdout == b"True\n", "the control: a queue outlives its process"
    assert await provider.reset(sandbox)
    assert (await python(sandbox, look)).stdout == b"False\n"


async def test_grader_output_by_os_exit__is_only_output(sandbox: Sandbox) -> None:
    result = await sandbox.run_python("import os\nprint('SCORE 20', flush=True)\nos._exit(0)\n")
    assert (result.stdout, result.exit_code) == (b"SCORE 20\n", 0)


async def test_gigabyte_of_output__is_bounded_and_counted(sandbox: Sandbox) -> None:
    code = "import os\nblock = bytes(1 << 20)\nfor _ in range(1024):\n    left = len(block)\n    while left:\n"
    code += "        left -= os.write(1, block[:left])\n"
    result = await sandbox.run_python(code, timeout=120)
    assert result.total_stdout == 1 << 30
    assert result.truncated
    assert len(result.stdout) < 66_000
