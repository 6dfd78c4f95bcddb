"""The explicit allow of an environment, on a real bridge: with it a server is reached, without it nothing is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agentrl.environment import Environment, Episode, Message, Task, tool, tool_call
from agentrl.environment.demonstrate import play
from sandboxes.docker import Docker
from sandboxes.pool import Pool
from sandboxes.self_check import CHECK_SPEC
from tests.contract.sandbox.daemon import Daemon

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.docker]

_CALL = """\
import socket
try:
    print(socket.create_connection(({address!r}, {port}), timeout=10).recv(9).decode())
except OSError as error:
    print(error)
"""


class Caller(Environment):
    sandbox = CHECK_SPEC

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "call")]

    @tool(side_effects=False)
    async def call(self, episode: Episode, address: str, port: int) -> str:
        """What a server says."""
        return (await episode.sandbox.run_python(_CALL.format(address=address, port=port), timeout=20.0)).text.strip()

    async def reward(self, episode: Episode, sandbox: object) -> bool:
        return True


class AllowedCaller(Caller):
    sandbox = replace(CHECK_SPEC, network=True)


async def test_environment_that_opens_the_network__reaches_a_server_and_one_that_does_not_reaches_none(daemon: Daemon) -> None:
    if daemon.no_bridge:
        pytest.skip(daemon.no_bridge)
    callers: list[str] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer.get_extra_info("peername")[0])
        writer.write(b"welcome")
        writer.close()

    server = await asyncio.start_server(greet, daemon.address, 0)
    port = server.sockets[0].getsockname()[1]
    turns = [tool_call("call", address=daemon.address, port=port), "done"]
    pool = Pool(await Docker.connect(url=daemon.url), size=2)

    async def heard(environment: Environment) -> str:
        played = await play(environment, Task("one", {}, "train"), lambda episode: turns[episode.n_turns], pool)
        (observation,) = (entry.content for entry in played.entries[1:] if isinstance(entry, Message))
        return observation

    try:
        assert await heard(AllowedCaller()) == "welcome"
        assert "unreachable" in await heard(Caller())
    finally:
        server.close()
        await pool.close()
    assert len(callers) == 1
    assert callers[0] != daemon.address, "the control: it was the sandbox that called"
