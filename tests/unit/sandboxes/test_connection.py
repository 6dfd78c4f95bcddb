"""The client's end of the protocol against a peer that may say anything."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sandboxes import connection as connection_module
from sandboxes.agent import frames
from sandboxes.connection import Connection
from sandboxes.contract import SandboxDied, SandboxSpec
from sandboxes.engine import Demultiplexer
from sandboxes.handle import Handle


class Peer:
    """The far end, played by the test."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._frames = frames.FrameBuffer()

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        while (frame := self._frames.pop()) is None:
            self._frames.feed(await asyncio.get_running_loop().sock_recv(self._stream, 65536))
        return frame

    async def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        await self.send_bytes(frames.encode(header, body))

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._stream, data)

    def close(self) -> None:
        self._stream.close()


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[Connection, Peer]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection("box"), sock=ours)
    peer = Peer(theirs)
    yield connection, peer
    connection.close()
    peer.close()


RESULT = {"exit_code": 0, "stdout": 1, "total_stdout": 1, "total_stderr": 0, "duration_s": 0.1}


async def test_hello_of_another_version__ends_the_connection(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    await peer.send({"id": 0, "version": 99})
    with pytest.raises(SandboxDied, match="protocol 99"):
        await connection.hello(5)


async def test_replies_out_of_order__reach_their_requests(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    calls = [asyncio.ensure_future(connection.call("ping", {"which": which})) for which in range(3)]
    requests = [await peer.receive() for _ in calls]
    for header, _ in reversed(requests):
        await peer.send({"id": header["id"], "echo": header["which"]})
    assert [header["echo"] for header, _ in await asyncio.gather(*calls)] == [0, 1, 2]


async def test_reply_to_a_cancelled_request__is_dropped(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    given_up = asyncio.ensure_future(connection.call("run", {}))
    stale, _ = await peer.receive()
    given_up.cancel()
    wanted = asyncio.ensure_future(connection.call("run", {}))
    fresh, _ = await peer.receive()
    await peer.send({"id": stale["id"], "what": "stale"})
    await peer.send({"id": fresh["id"], "what": "fresh"})
    assert (await wanted)[0]["what"] == "fresh"


@pytest.mark.parametrize(
    "reply",
    [
        frames.encode({"id": 77}),
        frames.encode({"id": -1}),
        frames.encode({"id": "1"}),
        frames.encode({}),
        b"\xff" * 100,
        frames.encode({"id": 1, "errno": "2", "error": "x"}),
    ],
    ids=["never-made", "negative", "text", "none", "no-frame", "error-without-number"],
)
async def test_reply_that_breaks_the_protocol__ends_everything_pending(ends: tuple[Connection, Peer], reply: bytes) -> None:
    connection, peer = ends
    calls = [asyncio.ensure_future(connection.call("ping", {})) for _ in range(2)]
    await peer.receive()
    await peer.send_bytes(reply)
    if b"errno" in reply:
        peer.close()
    for call in calls:
        with pytest.raises(SandboxDied):
            await call
    with pytest.raises(SandboxDied):
        await connection.call("ping", {})


async def test_end_of_stream__is_death(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    call = asyncio.ensure_future(connection.call("run", {}))
    await peer.receive()
    peer.close()
    with pytest.raises(SandboxDied, match="unknown outcome"):
        await call


async def test_overdue_reply__is_death(ends: tuple[Connection, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_GRACE_S", 0.05)
    connection, _ = ends
    with pytest.raises(SandboxDied, match="no answer to 'run'"):
        await connection.call("run", {}, timeout_s=0.01)


async def test_reply_that_came_while_we_were_busy__is_no_death(
    ends: tuple[Connection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_GRACE_S", 0.05)
    connection, peer = ends
    call = asyncio.ensure_future(connection.call("ping", {}))
    header, _ = await peer.receive()
    await peer.send({"id": header["id"], "here": True})
    time.sleep(0.3)
    assert (await call)[0]["here"] is True


async def test_agent_that_gives_up__is_quoted(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    call = asyncio.ensure_future(connection.call("run", {}))
    await peer.receive()
    await peer.send({"id": 0, "lost": "GroundLost: no memory"})
    with pytest.raises(SandboxDied, match="no memory"):
        await call


@pytest.mark.parametrize(
    "field",
    [
        {"exit_code": "0"},
        {"exit_code": 1 << 40},
        {"stdout": 100},
        {"stdout": -1},
        {"total_stdout": None},
        {"duration_s": "long"},
        {"duration_s": -1.0},
    ],
)
async def test_result_with_a_wrong_field__is_death_not_a_result(ends: tuple[Connection, Peer], field: dict[str, Any]) -> None:
    connection, peer = ends
    handle = Handle("box", SandboxSpec(), connection)
    call = asyncio.ensure_future(handle.run_python("pass"))
    header, _ = await peer.receive()
    await peer.send({**RESULT, **field, "id": header["id"]}, b"x")
    with pytest.raises(SandboxDied):
        await call
    assert not handle.alive


async def test_output_beyond_what_was_asked_for__is_death(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    call = asyncio.ensure_future(Handle("box", SandboxSpec(), connection).run_python("pass", max_output=1000))
    header, _ = await peer.receive()
    await peer.send({**RESULT, "stdout": 5000, "id": header["id"]}, bytes(5000))
    with pytest.raises(SandboxDied):
        await call


async def test_errors_of_file_calls__are_the_usual_ones(ends: tuple[Connection, Peer]) -> None:
    connection, peer = ends
    handle = Handle("box", SandboxSpec(), connection)
    for number, kind in ((2, FileNotFoundError), (21, IsADirectoryError), (27, ValueError), (13, PermissionError)):
        call = asyncio.ensure_future(handle.read_file("x"))
        header, _ = await peer.receive()
        await peer.send({"id": header["id"], "errno": number, "error": "told"})
        with pytest.raises(kind, match="told"):
            await call


def test_engine_framing_cut_anywhere__gives_standard_output() -> None:
    stream = b""
    for kind, piece in ((1, b"one"), (2, b"complaint"), (1, b""), (1, b"two")):
        stream += bytes([kind, 0, 0, 0]) + len(piece).to_bytes(4, "big") + piece
    for step in range(1, len(stream) + 1):
        decode = Demultiplexer()
        out = b"".join(decode(stream[start : start + step]) for start in range(0, len(stream), step))
        assert (out, bytes(decode.complaints)) == (b"onetwo", b"complaint")
