"""Where the program starts inside the sandbox: as agent, as zygote, or as opener of namespaces."""

from __future__ import annotations

import os
import socket
import sys

from sandboxes.agent import kernel
from sandboxes.agent.settings import Settings


def enter(codes: dict[str, bytes], loader: str) -> None:
    """``sys.argv`` is: role, control descriptor (zygote and namespaces only), settings."""
    role, *control, text = sys.argv[1:]
    settings = Settings.from_json(text)
    kernel.set_title(b"sandbox-" + role.encode())
    if role == "agent":
        from sandboxes.agent import agent
        from sandboxes.agent.program import Program

        agent.main(Program(dict(codes), loader), settings)
    from sandboxes.agent import namespaces, zygote

    codes.clear()
    zygote.preload()
    os.dup2(0, 2)
    stream = socket.socket(fileno=int(control[0]))
    if role == "zygote":
        zygote.serve(stream, settings, zygote.filter_of(settings))
    namespaces.serve(stream, settings)
