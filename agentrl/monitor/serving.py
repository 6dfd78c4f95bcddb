"""What serves over HTTP: a socket to listen on, and a server that leaves signals to its process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from agentrl.errors import NotReadyError


class Server(uvicorn.Server):
    """Stops when ``should_exit`` is set; its process, which has more to end than the server, handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, who: str) -> socket.socket:
    """Bound and listening; port 0 takes a free one. `NotReadyError` says that ``who`` can't have the address."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise NotReadyError(f"The {who} can't listen on {host}:{port}: {error}. --port names another port.") from None
