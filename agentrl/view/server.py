"""Serving the web page until told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from ipaddress import ip_address

import uvicorn

from agentrl.monitor.serving import Server, listen
from agentrl.monitor.terminal import say
from agentrl.store.reader import Reader
from agentrl.view.app import View

GRACE_S = 5
"""What pages that are being read get when the viewer stops."""


def serve(reader: Reader, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM. `NotReadyError` when the address is taken."""
    asyncio.run(_serve(reader, listen(host, port, "viewer")))


async def _serve(reader: Reader, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    # Another site can point a name of its own at this machine; whoever opens the viewer to a network may call it as they like.
    names = ["localhost", host] if ip_address(host).is_loopback else ["*"]
    application = View(reader).app(names)
    server = Server(uvicorn.Config(application, log_level="warning", lifespan="off", timeout_graceful_shutdown=GRACE_S))

    def stop() -> None:
        server.should_exit = True
        reader.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    say(f"  viewer on http://{host}:{port}; Ctrl-C ends it")
    await server.serve([listening])
