"""A container daemon that stops in the middle of episodes, for real: a daemon of the test's own is killed and started again."""

from __future__ import annotations

import asyncio

import docker
import pytest

from sandboxes.contract import SandboxDied, SandboxUnavailable
from sandboxes.docker import Docker
from sandboxes.ownership import OWNER_LABEL, Owner
from sandboxes.pool import Pool
from sandboxes.self_check import CHECK_SPEC
from tests.contract.sandbox.daemon import Daemon

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.docker]


async def test_daemon_stops_in_mid_episode__is_death_not_output_and_leaves_nothing(daemon: Daemon) -> None:
    provider = await Docker.connect(url=daemon.url)
    client = docker.DockerClient(base_url=daemon.url, version="auto")
    pool = Pool(provider, size=2)
    async with pool.acquire(CHECK_SPEC) as busy, pool.acquire(CHECK_SPEC) as quiet:
        running = asyncio.ensure_future(busy.exec("echo begun; echo > begun; sleep 600", timeout=900))
        while not await busy.list_dir():
            await asyncio.sleep(0.02)
        assert (await quiet.run_python("print(1)")).stdout == b"1\n", "the control: both worked"
        image, mine = await provider.digest(CHECK_SPEC), {OWNER_LABEL: Owner.current().prefix}
        remains = client.containers.create(image, ["sleep", "60"], name="remains", labels=mine, network_mode="none")
        quiet.id = "remains"  # as if its own end did not take it along
        await asyncio.to_thread(daemon.kill)
        with pytest.raises(SandboxDied, match="unknown outcome"):
            await running
        with pytest.raises(SandboxDied):
            await quiet.run_python("print(1)")
    with pytest.raises(SandboxUnavailable, match=r"docker\.sock"):
        async with pool.acquire(CHECK_SPEC, timeout=10):
            raise AssertionError("a sandbox of a daemon that is away")
    await asyncio.to_thread(daemon.start)
    assert [left.id for left in client.containers.list(all=True, ignore_removed=True)] == [remains.id], (
        "the control: it is left"
    )
    async with pool.acquire(CHECK_SPEC, timeout=30) as fresh:
        assert (await fresh.run_python("print(1)")).stdout == b"1\n", "the pool goes on when the daemon is back"
    await pool.close()
    assert client.containers.list(all=True) == []
    assert pool.metrics()["swept"] == 1
