"""Who dies, and who notices: agents, sandboxes, workers, owners."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import docker
import psutil
import pytest

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.contract import Provider, Sandbox, SandboxDied, SandboxSpec, SandboxUnavailable
from sandboxes.docker import OWNER_LABEL, Docker
from sandboxes.handle import Handle
from sandboxes.local import UnsafeLocal
from sandboxes.ownership import Owner
from sandboxes.self_check import CHECK_SPEC
from tests.contract.sandbox.daemon import docker_url

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORKER = """
import asyncio, sys
from sandboxes.bubblewrap import Bubblewrap
from sandboxes.docker import Docker
from sandboxes.self_check import CHECK_SPEC

async def main():
    provider = Bubblewrap() if sys.argv[1] == "bubblewrap" else await Docker.connect(sys.argv[1], sys.argv[2])
    sandbox = await provider.create(CHECK_SPEC)
    running = asyncio.ensure_future(sandbox.run_python("import time\\nopen('up', 'w').close()\\ntime.sleep(600)", timeout=900))
    while True:
        try:
            await sandbox.read_file("up")
            break
        except FileNotFoundError:
            await asyncio.sleep(0.05)
    print(sandbox.id, flush=True)
    await running

asyncio.run(main())
"""


def engine(provider: Docker) -> docker.DockerClient:
    return docker.DockerClient(base_url=provider.url, version="auto")


def ours(provider: Provider, creator: int) -> set[int]:
    """Agents and zygotes of the sandboxes that a process created; other people's are none of ours."""
    if isinstance(provider, Docker):
        mine = {"label": f"{OWNER_LABEL}={owner_of(creator).prefix}"}
        listed = engine(provider).containers.list(filters=mine, ignore_removed=True)
        roots = [psutil.Process(container.attrs["State"]["Pid"]) for container in listed]
        return {process.pid for root in roots for process in [root, *root.children(recursive=True)]}
    found = psutil.Process(creator).children(recursive=True)
    return {process.pid for process in found if _title(process).startswith("sandbox-")}


def _title(process: psutil.Process) -> str:
    """What it calls itself; nothing once it has ended, be it reaped or not."""
    with suppress(psutil.NoSuchProcess):  # a zombie is one to psutil
        return (process.cmdline() or [""])[0]
    return ""


def owner_of(pid: int) -> Owner:
    started = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    return Owner(Owner.current().host, pid, started)


async def until(condition: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    give_up = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up, what
        await asyncio.sleep(0.05)


async def test_worker_is_killed__its_sandbox_is_gone_in_seconds(provider: Provider) -> None:
    command = [sys.executable, "-c", WORKER, provider.name, *([provider.url] if isinstance(provider, Docker) else [])]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert worker.stdout is not None
    name = (await asyncio.to_thread(worker.stdout.readline)).strip()
    during = ours(provider, worker.pid)
    assert name, "the worker made no sandbox"
    assert len(during) >= 2, "the control: agent and zygote were there"
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    await until(lambda: not any(map(psutil.pid_exists, during)), f"processes of {name} left")
    if isinstance(provider, Docker):
        client = engine(provider)
        await until(lambda: name not in [listed["Id"] for listed in client.api.containers(all=True)], f"container {name} left")


async def test_agent_is_killed__pending_calls_die_and_nothing_looks_like_output(provider: Provider) -> None:
    before = ours(provider, os.getpid())
    sandbox = await provider.create(CHECK_SPEC)
    code = "import time\nprint('x' * 10000, flush=True)\ntime.sleep(600)"
    running = asyncio.ensure_future(sandbox.run_python(code, timeout=900))
    await sandbox.ping()
    for pid in ours(provider, os.getpid()) - before:
        with suppress(FileNotFoundError):  # some that were listed have ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sandbox-agent"):
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxDied, match="unknown outcome"):
        await running
    with pytest.raises(SandboxDied):
        await sandbox.run_python("print(1)")
    await provider.destroy(sandbox)
    await until(lambda: ours(provider, os.getpid()) <= before, "a process was left")


@pytest.mark.parametrize("spec", [replace(CHECK_SPEC, ttl_s=1.5), replace(CHECK_SPEC, idle_s=1.5)], ids=["ttl", "idle"])
async def test_lifetime_or_idle_time_is_over__sandbox_ends_itself(provider: Provider, spec: SandboxSpec) -> None:
    sandbox = await provider.create(spec)
    assert isinstance(sandbox, Handle)
    assert (await sandbox.run_python("print(1)")).stdout == b"1\n", "the control: it lived"
    await until(lambda: not sandbox.alive, "it outlived its limit")
    with pytest.raises(SandboxDied):
        await sandbox.ping()
    await provider.destroy(sandbox)


async def test_client_waits_longer_than_the_idle_time__sandbox_lives_on() -> None:
    provider = UnsafeLocal()
    for_command, for_job = [await provider.create(replace(CHECK_SPEC, idle_s=2.0)) for _ in range(2)]

    async def by_job() -> None:
        job = await for_job.start("sleep 3; echo built")
        assert (await job.wait(60)).stdout == b"built\n"
        await for_job.ping()

    async def by_command() -> None:
        assert (await for_command.exec("sleep 3; echo built")).stdout == b"built\n"
        await for_command.ping()

    try:
        await asyncio.gather(by_job(), by_command())
    finally:
        for sandbox in (for_command, for_job):
            await provider.destroy(sandbox)


async def test_creation_is_cancelled__leaves_nothing(provider: Provider) -> None:
    before = ours(provider, os.getpid())
    for delay in (0.0, 0.02, 0.1, 0.3):
        creating = asyncio.ensure_future(provider.create(CHECK_SPEC))
        await asyncio.sleep(delay)
        if creating.cancel():
            with pytest.raises(asyncio.CancelledError):
                await creating
        else:
            await provider.destroy(creating.result())
    await until(lambda: ours(provider, os.getpid()) <= before, "a sandbox was left")


@pytest.mark.docker
async def test_sweep__removes_only_containers_of_owners_proved_dead() -> None:
    url = docker_url()
    provider = await Docker.connect(url=url)
    client = docker.DockerClient(base_url=url, version="auto")
    image = await provider.digest(CHECK_SPEC)
    me = Owner.current()
    owners = {
        "dead": Owner(me.host, me.pid, me.started - 1),
        "alive": me,
        "elsewhere": Owner("another-host", 1, 1),
    }
    made = {
        name: client.containers.create(image, ["sleep", "60"], labels={OWNER_LABEL: owner.prefix}, network_mode="none")
        for name, owner in owners.items()
    }
    made["stranger"] = client.containers.create(image, ["sleep", "60"], network_mode="none")
    try:
        assert await provider.sweep() == 1
        left = {listed["Id"] for listed in client.api.containers(all=True)}
        assert {name for name, container in made.items() if container.id in left} == {"alive", "elsewhere", "stranger"}
    finally:
        for name, container in made.items():
            if name != "dead":
                container.remove(force=True)


async def test_groups_of_a_dead_owner__are_swept() -> None:
    provider = Bubblewrap()
    if not provider.capabilities.pids_limit:
        pytest.skip("no writable control groups here")
    me = Owner.current()
    parents = [parent.directory for parent in provider._groups._parents]
    dead = [parent / f"{Owner(me.host, me.pid, me.started - 1).prefix}0" for parent in parents]
    other = [parent / f"{Owner('another-host', 1, 1).prefix}0" for parent in parents]
    for group in dead + other:
        group.mkdir()
    try:
        Bubblewrap()
        assert not any(group.exists() for group in dead)
        assert all(group.exists() for group in other)
    finally:
        for group in other:
            group.rmdir()


async def test_folders_of_a_dead_owner__are_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    me = Owner.current()
    owners = {"dead": Owner(me.host, me.pid, me.started - 1), "alive": me, "elsewhere": Owner("another-host", 1, 1)}
    folders = {name: tmp_path / f"{owner.prefix}x" for name, owner in owners.items()}
    for folder in (*folders.values(), tmp_path / "agentrl-of-a-stranger"):
        (folder / "workspace").mkdir(parents=True)
    assert await UnsafeLocal().sweep() == 1
    assert {name for name, folder in folders.items() if folder.exists()} == {"alive", "elsewhere"}
    assert (tmp_path / "agentrl-of-a-stranger").exists()


async def test_unsafe_local_time_out_and_end__leave_no_process() -> None:
    provider = UnsafeLocal()
    sandbox: Sandbox = await provider.create(CHECK_SPEC)

    def sleepers() -> int:
        return sum("345.6" in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))

    running = asyncio.ensure_future(sandbox.exec("setsid sleep 345.6 & setsid sleep 345.6 & sleep 345.6", timeout=1))
    await until(lambda: sleepers() == 3, "the control: three sleepers")
    assert (await running).timed_out
    assert sleepers() == 0
    running = asyncio.ensure_future(sandbox.exec("setsid sleep 345.6 & sleep 345.6"))
    await until(lambda: sleepers() == 2, "the control: two sleepers")
    await provider.destroy(sandbox)
    with pytest.raises(SandboxDied):
        await running
    assert sleepers() == 0


@pytest.mark.docker
async def test_image_that_does_not_exist__is_unavailable_by_name() -> None:
    provider = await Docker.connect(url=docker_url())
    with pytest.raises(SandboxUnavailable, match="no-such-image-anywhere"):
        await provider.create(replace(CHECK_SPEC, image="no-such-image-anywhere"))
