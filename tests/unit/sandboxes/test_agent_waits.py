"""When the agent waits for its zygote, and when it does not."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest

from sandboxes.agent import frames, zygote
from sandboxes.agent.agent import Agent
from sandboxes.agent.ground import Ground, GroundLost
from sandboxes.agent.settings import IN_PLACE, Settings

RUN = {"op": "run", "id": 1, "argv": ["true"], "env": {}, "timeout_s": 60.0, "max_output": 100}
RESET = {"op": "reset", "id": 2}
KILL = {"op": "kill_all", "id": 2}
SETTINGS = Settings(IN_PLACE, {"/workspace": "/"}, ttl_s=5.0)


class NoProcesses:
    """Nothing to kill, nothing killed."""

    whole_namespace = True

    def kill(self, kept_sessions: Collection[int] = ()) -> bool:
        return True


class SilentGround(Ground):
    """Its zygote takes requests and never answers; a reset puts another in its place."""

    def __init__(self) -> None:
        self.processes = NoProcesses()  # type: ignore[assignment]
        self._start()

    def reset(self) -> list[str]:
        self.close()
        self._start()
        return []

    def close(self) -> None:
        self.control.close()
        self.zygote.close()

    def _start(self) -> None:
        self.control, self.zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(0.05)


class Ended(Exception):
    """The agent ended as if all was well."""


class Client:
    """The other end of an agent's stream; its requests are there before the agent looks."""

    def __init__(self, ground: SilentGround) -> None:
        self.incoming, self._requests = os.pipe()
        self._replies, self.outgoing = os.pipe()
        self.ground = ground
        for descriptor in (self.incoming, self._replies):
            os.set_blocking(descriptor, False)

    def ask(self, *requests: dict[str, object]) -> None:
        os.write(self._requests, b"".join(frames.encode(request) for request in requests))

    def hang_up(self) -> None:
        os.close(self._requests)
        self._requests = -1

    def replies(self) -> list[dict[str, object]]:
        buffer = frames.FrameBuffer()
        buffer.feed(os.read(self._replies, 65536))
        return [header for header, _ in iter(buffer.pop, None)]

    def close(self) -> None:
        for descriptor in (self.incoming, self._requests, self._replies, self.outgoing):
            if descriptor >= 0:
                os.close(descriptor)
        self.ground.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    client = Client(SilentGround())
    yield client
    client.close()


@pytest.mark.parametrize("requests", [[RUN, RESET], [RUN, KILL], [{**RUN, "timeout_s": 0.01}]], ids=["reset", "kill", "limit"])
def test_zygote_that_never_starts_a_command__is_a_lost_ground(requests: list[dict[str, object]], client: Client) -> None:
    client.ask(*requests)
    with pytest.raises(GroundLost, match="zygote: timed out"):
        Agent(client.ground, SETTINGS, client.incoming, client.outgoing).serve()


def test_times_of_weeks__are_waited_for(client: Client) -> None:
    client.hang_up()
    with pytest.raises(Ended):
        Agent(client.ground, replace(SETTINGS, ttl_s=1e9, idle_s=1e9), client.incoming, client.outgoing).serve()


def test_reset_while_the_zygote_says_something__does_not_wait_for_it_to_say_more(client: Client) -> None:
    client.ground.zygote.send(zygote.ENDED + b"7 0")
    client.ask(RESET)
    client.hang_up()
    with pytest.raises(Ended):
        Agent(client.ground, SETTINGS, client.incoming, client.outgoing).serve()
    assert client.replies()[1:] == [{"doubts": [], "id": 2, "n": 0}]
