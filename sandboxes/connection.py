"""The client's end of the protocol: many requests at once over one stream, matched by id.

- Replies are untrusted: sizes and types are checked, a reply to a request that nobody waits for any more is dropped, one to a
  request never made ends the connection.
- The end of the stream ends every pending request with `SandboxDied`; so does an answer that is overdue. A lost stream has no
  successor: its end is how the agent notices that its client is gone, so the sandbox ends with it.
- A request that was cancelled is forgotten; what it started goes on until its own time-out, a kill or a reset.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any, Protocol

from sandboxes.agent import frames
from sandboxes.contract import SandboxDied

Reply = tuple[dict[str, Any], bytes]
_GRACE_S = 30.0
"""How long beyond its own time-out a command's reply may take: fork bombs die in rounds."""


class Decoder(Protocol):
    """Takes the agent's bytes out of a transport's framing."""

    def __call__(self, data: bytes) -> bytes: ...


class Connection(asyncio.Protocol):
    """One sandbox's stream. ``name`` appears in errors; ``decode`` undoes the transport's own framing, if any."""

    def __init__(self, name: str, decode: Decoder | None = None) -> None:
        self.name = name
        self.death: str | None = None
        self._decode = decode
        self._transport: asyncio.WriteTransport | None = None
        self._frames = frames.FrameBuffer()
        self._pending: dict[int, asyncio.Future[Reply]] = {0: asyncio.get_running_loop().create_future()}
        self._ids = itertools.count(1)
        self._last_id = 0

    async def hello(self, timeout_s: float) -> dict[str, Any]:
        """The agent's greeting, checked for its version."""
        header, _ = await self._wait(0, timeout_s, "start")
        if header.get("version") != frames.PROTOCOL_VERSION:
            self._die(f"speaks protocol {header.get('version')!r}, expected {frames.PROTOCOL_VERSION}")
            raise self._died()
        return header

    async def call(self, operation: str, fields: dict[str, Any], body: bytes = b"", *, timeout_s: float = 0.0) -> Reply:
        """Send a request, await its reply. OSError as the agent reports it; `SandboxDied` when there is none."""
        if self.death is not None or self._transport is None:
            raise self._died()
        self._last_id = number = next(self._ids)
        frame = frames.encode({**fields, "op": operation, "id": number}, body)
        self._pending[number] = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        header, output = await self._wait(number, timeout_s + _GRACE_S, operation)
        if "errno" in header:
            code, message = header["errno"], header.get("error")
            if type(code) is not int or not isinstance(message, str):
                self._die("broke the protocol: an error without number and text")
                raise self._died()
            raise OSError(code, message, fields.get("path"))
        return header, output

    def close(self) -> None:
        """Close the stream: the agent ends, and with it the sandbox."""
        self._die("closed")

    async def _wait(self, number: int, timeout_s: float, operation: str) -> Reply:
        reply = self._pending[number]
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            if reply.done() and not reply.cancelled():
                return reply.result()  # it was this process that was late
            self._die(f"no answer to {operation!r} within {timeout_s:g} s")
            raise self._died() from None
        finally:
            self._pending.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            self._frames.feed(self._decode(data) if self._decode else data)
            while frame := self._frames.pop():
                self._deliver(*frame)
        except (frames.FrameError, UntrustedReply) as error:
            self._die(f"broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._die(f"stream lost: {exc}" if exc else "ended")

    def _deliver(self, header: dict[str, Any], body: bytes) -> None:
        if "lost" in header:
            self._die(f"gave up: {header['lost']!r:.500}")
            return
        number = int_of(header, "id")
        if not 0 <= number <= self._last_id:
            raise UntrustedReply(f"reply to request {number}, which was never made")
        waiting = self._pending.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result((header, body))

    def _die(self, why: str) -> None:
        if self.death is not None:
            return
        self.death = why
        if self._transport is not None:
            self._transport.abort() if isinstance(self._transport, asyncio.Transport) else self._transport.close()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(self._died())
                # Nobody may be waiting any more; then nobody needs to hear of it.
                waiting.exception()

    def _died(self) -> SandboxDied:
        return SandboxDied(f"{self.name}: {self.death or 'not connected'}; what it was doing has an unknown outcome")


class UntrustedReply(ValueError):
    """A reply has a field of the wrong type or range."""


def int_of(header: dict[str, Any], name: str) -> int:
    """A non-negative integer field."""
    value = header.get(name)
    if type(value) is not int or value < 0:
        raise UntrustedReply(f"{name} is {value!r:.100}")
    return value


def seconds(value: float, what: str) -> float:
    """A finite positive number of seconds; anything else is refused."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise ValueError(f"{what} is {value!r}; give a finite number of seconds above 0")
    return float(value)
