"""What is particular to single providers: users without rights, images with volumes, Podman."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import docker
import psutil
import pytest

import sandboxes
from sandboxes.choose import choose
from sandboxes.contract import Provider, Sandbox, SandboxSpec, SandboxUnavailable, SandboxUnsupported
from sandboxes.docker import Docker
from sandboxes.handle import Handle
from sandboxes.pool import Pool
from sandboxes.self_check import CHECK_SPEC, run_checks
from tests.contract.sandbox.daemon import docker_url

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOBODY = 65534


@pytest.fixture
def open_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package where any user can read it."""
    directory = Path("/tmp") / f"agentrl-open-{os.getpid()}"
    shutil.copytree(Path(sandboxes.__file__).parent, directory / "sandboxes", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
    yield directory
    shutil.rmtree(directory)


def python_for_anyone() -> str:
    """An interpreter that is recent enough and that other users can run."""
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3", os.path.realpath(sys.executable)):
        command = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", candidate, "-c", "import asyncio; asyncio.timeout"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return candidate
    pytest.skip("no Python 3.11 here that a user without rights can run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_bubblewrap_as_user_without_rights__passes_the_self_check(open_copy: Path) -> None:
    command = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", python_for_anyone(), "-P", "-m"]
    command += ["sandboxes.self_check", "--provider", "bubblewrap"]
    ran = subprocess.run(command, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(open_copy)}, capture_output=True, text=True)
    if "No permissions to create new namespace" in ran.stdout + ran.stderr:
        pytest.skip("this kernel gives users no namespaces")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "limits are per process" in ran.stdout
    assert ran.stdout.count("\nok ") > 20


async def test_podman__passes_the_self_check() -> None:
    try:
        provider, _ = await choose("podman")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    lines: list[str] = []
    assert await run_checks(provider, lines.append) == 0, "\n".join(lines)


@pytest.mark.docker
async def test_image_with_a_volume__is_never_reset_in_place() -> None:
    provider = await Docker.connect(url=docker_url())
    client = docker.DockerClient(base_url=docker_url(), version="auto")
    recipe = BytesIO(b"FROM agentrl-base\nRUN mkdir /data\nVOLUME /data\n")
    client.images.build(fileobj=recipe, tag="agentrl-test-volume", network_mode="none", rm=True)
    sandbox = await provider.create(replace(CHECK_SPEC, image="agentrl-test-volume"))
    try:
        assert isinstance(sandbox, Handle)
        assert await sandbox.reset() == ["writable mount /data"]
    finally:
        await provider.destroy(sandbox)


async def test_commands_overlap_when_the_process_table_is_full__the_late_one_is_a_failed_command(sandbox: Sandbox) -> None:
    hog = """
import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
except OSError:
    open('full', 'w').close()
time.sleep(60)
"""
    running = asyncio.ensure_future(sandbox.run_python(hog, timeout=30))
    for _ in range(1000):
        try:
            await sandbox.read_file("full")
            break
        except FileNotFoundError:
            await asyncio.sleep(0.01)
    late = await sandbox.run_python("print(1)")
    assert late.exit_code == 126
    assert b"cannot start" in late.stderr
    assert isinstance(sandbox, Handle)
    await sandbox.kill_all()
    assert (await running).exit_code == -9


async def test_killed_for_memory__is_told_apart_from_any_other_kill(provider: Provider, sandbox: Sandbox) -> None:
    if not provider.capabilities.memory_limit:
        pytest.skip("no limit of the whole sandbox's memory here")
    hog = "x = []\nwhile True:\n    x.append(bytearray(b'x' * (1 << 22)))"
    hogged = await sandbox.run_python(hog, timeout=60)
    assert (hogged.exit_code, hogged.oom_killed) == (-9, True)
    within = await sandbox.exec(f'python3 -c "{hog}"; echo went on', timeout=60)
    assert (within.exit_code, within.text, within.oom_killed) == (0, "went on\n", True)
    job = await sandbox.start(["python3", "-c", hog])
    assert (await job.wait(60)).oom_killed
    other = await sandbox.exec("kill -9 $$")
    assert (other.exit_code, other.oom_killed) == (-9, False)
    assert not (await sandbox.run_python("print(1)")).oom_killed


async def test_bubblewrap_spec_it_cannot_enforce__is_refused() -> None:
    provider, _ = await choose("bubblewrap")
    for spec in (SandboxSpec(network=True), SandboxSpec(image="python:3.12")):
        with pytest.raises(SandboxUnsupported):
            await provider.create(spec)


async def test_pool_over_real_sandboxes__serves_many_episodes_and_leaves_none() -> None:
    provider, _ = await choose("bubblewrap")
    pool = Pool(provider, size=3)
    seen: list[bytes] = []

    async def episode(number: int) -> None:
        async with pool.acquire(CHECK_SPEC) as sandbox:
            found = await sandbox.run_python("import os\nprint(os.listdir('.'))")
            seen.append(found.stdout)
            await sandbox.write_file(f"episode-{number}", b"secret")
            await sandbox.run_python("import time\ntime.sleep(0.01)")

    episodes = [asyncio.ensure_future(episode(number)) for number in range(30)]
    await asyncio.sleep(0.3)
    for number in range(0, 30, 7):
        episodes[number].cancel()
    await asyncio.gather(*episodes, return_exceptions=True)
    assert len(seen) >= 20
    assert set(seen) == {b"[]\n"}
    assert pool.metrics()["resets"] >= 20
    await pool.close()
    left = [process for process in psutil.Process().children(recursive=True) if process.name() == "bwrap"]
    shared = 1
    assert len(left) <= shared * 2
