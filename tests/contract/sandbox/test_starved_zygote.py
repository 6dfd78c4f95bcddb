"""A busy machine: the interpreter that starts commands gets no time, and meanwhile they are cancelled, killed or out of time.

It is stopped here, so that nothing depends on luck.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import docker
import psutil
import pytest
import pytest_asyncio

from sandboxes.contract import Provider, Sandbox
from sandboxes.docker import Docker
from sandboxes.self_check import CHECK_SPEC
from tests.contract.sandbox.providers import ALL, provider_called

pytestmark = pytest.mark.asyncio(loop_scope="session")

Result = TypeVar("Result")


class Starved:
    """A sandbox whose zygote is stopped from the beginning."""

    def __init__(self, provider: Provider, sandbox: Sandbox) -> None:
        self.provider, self.sandbox = provider, sandbox
        self._zygote = _zygote(_agent(provider, sandbox))
        self._zygote.send_signal(signal.SIGSTOP)

    async def fed_after(self, call: Awaitable[Result], wait_s: float = 0.5) -> Result:
        """What a call returns that was made before the zygote went on; one that returns earlier is not held up."""
        made = asyncio.ensure_future(call)
        await asyncio.wait([made], timeout=wait_s)
        self._zygote.send_signal(signal.SIGCONT)
        return await made


@pytest_asyncio.fixture(loop_scope="session", params=ALL)
async def starved(request: pytest.FixtureRequest) -> AsyncIterator[Starved]:
    provider = await provider_called(request.param)
    sandbox = await provider.create(CHECK_SPEC)
    try:
        yield Starved(provider, sandbox)
        assert (await sandbox.exec("echo fed")).stdout == b"fed\n"
        assert await provider.reset(sandbox)
    finally:
        await provider.destroy(sandbox)


def _agent(provider: Provider, sandbox: Sandbox) -> psutil.Process:
    if isinstance(provider, Docker):
        client = docker.DockerClient(base_url=provider.url, version="auto")
        return psutil.Process(client.containers.get(sandbox.id).attrs["State"]["Pid"])
    started = psutil.Process(provider._processes[sandbox.id][0].pid)  # type: ignore[attr-defined]
    return next(process for process in [started, *started.children(recursive=True)] if _title(process) == "sandbox-agent")


def _zygote(agent: psutil.Process) -> psutil.Process:
    """Where every episode has namespaces of its own, it is forked by the one that opens them."""
    while inner := [child for child in agent.children() if _title(child).startswith("sandbox-")]:
        (agent,) = inner
    return agent


def _title(process: psutil.Process) -> str:
    return (process.cmdline() or [""])[0]


async def test_command_cancelled_before_it_started__does_not_run_in_the_next_episode(starved: Starved) -> None:
    sandbox = starved.sandbox
    running = asyncio.ensure_future(sandbox.exec("echo mine > stray; sleep 60"))
    await sandbox.ping()  # requests are served in turn: the command was asked for
    running.cancel()
    assert await starved.fed_after(starved.provider.reset(sandbox))
    assert (await sandbox.exec("sleep 0.2; ls")).stdout == b""
    assert await sandbox.list_dir() == []


async def test_limit_before_the_start__is_a_time_out(starved: Starved) -> None:
    result = await starved.fed_after(starved.sandbox.exec("sleep 60", timeout=0.2))
    assert (result.exit_code, result.limit, result.stdout) == (-9, "timeout", b"")


async def test_kill_before_the_start__ends_the_command(starved: Starved) -> None:
    running = asyncio.ensure_future(starved.sandbox.exec("sleep 1; echo went on"))
    await starved.sandbox.ping()
    await starved.fed_after(starved.sandbox.kill_all())
    assert ((await running).exit_code, (await running).stdout) == (-9, b"")


async def test_kill_of_a_job_before_its_start__ends_it(starved: Starved) -> None:
    job = await starved.sandbox.start("sleep 1; echo went on")
    ended = await starved.fed_after(job.kill())
    assert (ended.exit_code, ended.running, ended.stdout) == (-9, False, b"")
