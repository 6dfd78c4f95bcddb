"""Images as users bring them: without Python, with a set-up of their own, with a writable system, or wrong."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import docker
import pytest
import pytest_asyncio

from sandboxes import prepare
from sandboxes.contract import Sandbox, SandboxError, SandboxImageError, SandboxSpec, SandboxUnavailable, SandboxUnsupported
from sandboxes.docker import Docker
from sandboxes.handle import Handle
from sandboxes.images import build_image
from sandboxes.pool import Pool
from sandboxes.prune import prune
from sandboxes.self_check import CHECK_SPEC
from tests.contract.sandbox.daemon import docker_url

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.docker]

EMPTY = "agentrl-test-empty"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def provider() -> Docker:
    return await Docker.connect(url=docker_url())


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return docker.DockerClient(base_url=docker_url(), version="auto")


async def used(provider: Docker, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    sandbox = await provider.create(spec)
    try:
        yield sandbox
    finally:
        await provider.destroy(sandbox)


async def test_image_with_nothing_in_it__gets_a_python_and_passes_for_a_sandbox(
    provider: Docker, client: docker.DockerClient
) -> None:
    archive = BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        program = tarfile.TarInfo("etc/kept")
        tar.addfile(program, BytesIO())
    client.api.import_image_from_data(archive.getvalue(), repository=EMPTY, tag="latest")
    spec = replace(CHECK_SPEC, image=EMPTY)
    async for sandbox in used(provider, spec):
        found = await sandbox.run_python("import ctypes, json, os, sys\nprint(sys.version_info >= (3, 9), os.listdir('/etc'))")
        assert b"True" in found.stdout
        assert b"kept" in found.stdout
        assert (await sandbox.exec("echo hi")).exit_code == 127, "the control: it has no shell"
        assert (await sandbox.run_python("import time\ntime.sleep(60)", timeout=0.5)).timed_out
        await sandbox.write_file("left", b"")
        assert await provider.reset(sandbox)
        assert await sandbox.list_dir() == []
    assert await provider.digest(spec) != client.images.get(EMPTY).id, "the digest is that of what really ran"


SETUP = (
    "id -u > /usr/local/who; mkdir -p repo/deep; echo first > repo/deep/file; ln -s deep/file repo/link; chmod 750 repo/deep",
    "test -f repo/deep/file && touch -d @1000000000 repo/deep/file",
)


async def test_setup__is_run_once_and_every_episode_starts_with_what_it_made(
    provider: Docker, client: docker.DockerClient
) -> None:
    mark = secrets.token_hex(4)
    spec = replace(
        CHECK_SPEC, setup=(*SETUP, f"echo {mark} > /usr/local/mark; cat /proc/sys/kernel/random/uuid > /usr/local/once")
    )
    pool = Pool(provider, size=3)
    seen = []

    async def episode() -> None:
        async with pool.acquire(spec) as sandbox:
            looked = await sandbox.exec(
                "cat /usr/local/who /usr/local/mark repo/link /usr/local/once; id -u; stat -c %a repo/deep"
            )
            assert looked.exit_code == 0, looked
            seen.append(looked.stdout)
            status = await sandbox.stat("repo/deep/file")
            assert (status.size, status.modified) == (6, 1e9)
            spoiled = await sandbox.exec("echo spoiled > repo/deep/file; rm -r repo/link; touch repo/more; touch /usr/local/no")
            assert b"Read-only" in spoiled.stderr, "the control: the system is read-only again"

    await asyncio.gather(*(episode() for _ in range(12)))
    assert len(set(seen)) == 1
    assert seen[0].startswith(b"0\n%s\nfirst\n" % mark.encode())
    assert b"\n1000\n" in seen[0]
    assert pool.metrics()["resets"] >= 3
    assert pool.metrics()["discarded"] == 0, "every reset was certain"
    await pool.close()
    again = await Docker.connect(url=docker_url())
    digest = await again.digest(spec)
    assert digest == await provider.digest(spec), "another process finds the same image"
    assert digest != await provider.digest(CHECK_SPEC)
    (label,) = [image.labels["agentrl.owner"] for image in client.images.list() if image.id == digest]
    assert label == "", "nobody's container is swept because its image came from here"
    client.images.remove(digest, force=True)


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ({"setup": ("echo fine", "echo the reason >&2; exit 3")}, SandboxImageError, "exit 3.*exit code 3: the reason"),
        ({"setup": ("sleep 61",), "setup_timeout_s": 1.0}, SandboxImageError, "sleep 61.*setup_timeout_s=1"),
        ({"image": "Not::A::Name"}, SandboxImageError, "Not::A::Name.*invalid reference"),
        ({"image": "no-such-image-anywhere"}, (SandboxImageError, SandboxUnavailable), "no-such-image-anywhere"),
    ],
    ids=["setup-fails", "setup-hangs", "no-name", "no-image"],
)
async def test_image_that_cannot_be_had__is_told_by_name_and_leaves_no_container(
    provider: Docker, client: docker.DockerClient, change: dict[str, object], kind: type[SandboxError], told: str
) -> None:
    before = len(client.containers.list(all=True, ignore_removed=True))
    with pytest.raises(kind, match=told):
        await provider.create(replace(CHECK_SPEC, **change))  # type: ignore[arg-type]
    assert len(client.containers.list(all=True, ignore_removed=True)) <= before


async def test_dockerfile_that_fails__is_told_with_its_last_lines(client: docker.DockerClient, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN echo the reason; exit 4\n")
    with pytest.raises(SandboxImageError, match=r"(?s)agentrl-test-fails.*returned a non-zero code: 4.*the reason"):
        await asyncio.to_thread(build_image, client, tmp_path, "agentrl-test-fails", "agentrl-base")
    (tmp_path / "Dockerfile").write_text("NONSENSE\n")
    with pytest.raises(SandboxImageError, match="NONSENSE"):
        await asyncio.to_thread(build_image, client, tmp_path, "agentrl-test-fails", "agentrl-base")


async def test_writable_system__can_be_changed_and_never_sees_a_second_episode(provider: Docker) -> None:
    spec = replace(CHECK_SPEC, read_only=False, workdir="/app", setup=("mkdir /app; echo 1 > /app/n; chown -R 1000:1000 /app",))
    pool = Pool(provider, size=1)
    for _ in range(2):
        async with pool.acquire(spec) as sandbox:
            result = await sandbox.exec("pwd; cat n; echo 2 > n; cat n")
            assert result.stdout == b"/app\n1\n2\n"
            assert await sandbox.read_file("/app/n") == b"2\n"
            gone = await sandbox.exec("rm -rf /app/* /bin /usr/bin /lib 2>&1 | head -c 3; ls /app; ls /bin/sh", timeout=60)
            assert gone.stdout == b"rm:/bin/sh\n", "the control: what could be deleted was, and the rest was tried"
            assert isinstance(sandbox, Handle)
    assert pool.metrics()["starts"] == 2
    await pool.close()


async def test_prune__removes_what_is_unused_and_not_in_use(
    provider: Docker, client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "cache_directory", lambda: tmp_path)
    old, new = (replace(CHECK_SPEC, setup=(f"echo {secrets.token_hex(4)} > /usr/local/mark",)) for _ in range(2))
    digests = [await provider.digest(spec) for spec in (old, new)]
    names = [client.images.get(digest).tags[0] for digest in digests]
    month = time.time() - 31 * 86400
    os.utime(prepare.lock_file(client.images.get(digests[0]).labels[prepare.PREPARED_LABEL]), (month, month))

    def pruned(*, dry_run: bool = False) -> dict[str, str]:
        made = prune(client, 30 * 86400, dry_run=dry_run)
        return {image.name: image.why_not or "removed" for image in made if image.name in names}

    assert pruned(dry_run=True) == {names[0]: "only looked at", names[1]: "used lately"}
    async for _ in used(provider, old):
        assert pruned()[names[0]] == "in use"
    assert pruned() == {names[0]: "removed", names[1]: "used lately"}
    assert pruned() == {names[1]: "used lately"}
    again = await Docker.connect(url=docker_url())
    assert await again.digest(old), "it is prepared anew when it is wanted again"
    for spec in (old, new):
        client.images.remove(await again.digest(spec), force=True)


async def test_network__is_opened_by_the_spec_alone_or_refused(provider: Docker, client: docker.DockerClient) -> None:
    spec = replace(CHECK_SPEC, network=True)
    if "bridge" not in [network.name for network in client.networks.list()]:
        with pytest.raises(SandboxUnsupported, match="network"):
            await provider.create(spec)
        return
    look = "import socket\nprint([name for _, name in socket.if_nameindex() if name.startswith('eth')])"
    async for sandbox in used(provider, spec):
        assert (await sandbox.run_python(look)).stdout == b"['eth0']\n"
    async for sandbox in used(provider, CHECK_SPEC):
        assert (await sandbox.run_python(look)).stdout == b"[]\n"


async def test_many_sandboxes__need_no_network_each(provider: Docker, client: docker.DockerClient) -> None:
    before = {network.id for network in client.networks.list()}
    made = await asyncio.gather(*(provider.create(CHECK_SPEC) for _ in range(4)))
    assert {network.id for network in client.networks.list()} == before
    await asyncio.gather(*(provider.destroy(sandbox) for sandbox in made))


async def test_sandbox_build_of_a_folder__prints_the_image_and_says_what_fails(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    environment = {**os.environ, "DOCKER_HOST": docker_url()}

    def build(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentrl.cli.main", "sandbox", "build", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[3])

    (folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN echo 1 > /usr/local/tool\n")
    built = build(str(folder), "--base", "agentrl-base")
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("agentrl-tools sha256:")
    (folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN exit 5\n")
    failed = build(str(folder), "--base", "agentrl-base")
    assert failed.returncode == 1
    assert "agentrl-tools" in failed.stderr
    assert "Traceback" not in failed.stderr
