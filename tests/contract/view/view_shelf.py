"""A store with small runs, and the viewer over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from starlette.testclient import TestClient
from store_bench import FAILED, Bench, Server, graded, no_grace, segment

from agentrl.store.contract import Trained
from agentrl.store.postgres import PostgresStore
from agentrl.store.reader import Reader
from agentrl.types import Opened, Timings, ToolCall, ToolResult
from agentrl.view.app import View

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x00nul ‮gnirts"
LONG = "x" * 25_000


@dataclass
class Shelf:
    """``plain``: three steps, a failure, an episode that runs. ``grouped``: groups of two. ``odd``: hostile and long output."""

    client: TestClient
    store: PostgresStore
    reader: Reader
    server: Server
    plain: Bench
    grouped: Bench
    odd: Opened
    running: Opened
    version: int
    """Of the tokens of the odd one."""

    def page(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("text/html")
        return answer.text

    def data(self, path: str, status: int = 200) -> Any:
        answer = self.client.get(path, headers={"Accept": "application/json"})
        assert answer.status_code == status, answer.text
        return answer.json()


@contextmanager
def filled_shelf() -> Iterator[Shelf]:
    """Everything above, on a server of its own."""
    server = Server("view", None)
    store = PostgresStore(server.url)
    no_grace(store)
    plain = Bench(store, name="plain", lag_bound=2, max_attempts=1)
    plain.start()
    plain.publish()
    for _ in range(3):
        _train_step(plain)
    odd, failed, running, *rest = plain.open()
    version = plain.version
    store.write_segment(odd, _odd_turn(0, version))
    store.write_segment(
        odd, segment(1, plain.version, action_text="<think>hm\nhm</think>done", loss_mask=np.array([1, 0, 1], np.uint8))
    )
    store.complete(odd, graded(2, -0.5))
    store.complete(failed, FAILED)
    store.write_segment(running, segment(0, plain.version))
    for episode in rest:
        plain.finish(episode)
    grouped = Bench(store, name="grouped", group_size=2, batch_min=2, batch_max=2, lag_bound=9)
    grouped.start()
    grouped.publish()
    for n, episode in enumerate(grouped.open(2)):
        grouped.finish(episode, value=float(n))
    grouped.commit(grouped.claim().items)
    reader = Reader(server.url, connections=2)
    with TestClient(View(reader).app(["testserver"])) as client:
        yield Shelf(client, store, reader, server, plain, grouped, odd, running, version)
    reader.close()
    store.close()
    server.close()


def _train_step(bench: Bench) -> None:
    for episode in bench.open(2):
        bench.finish(episode)
    claim = bench.claim()
    trained = [
        Trained(t.id, np.full(3, -0.25, np.float32), np.full(3, 0.5, np.float32), np.array([1, 2, 3], np.float32), None)
        for item in claim.items
        for t in item.trajectories
    ]
    bench.commit(claim.items, trained=trained)
    bench.publish()


def _odd_turn(index: int, version: int) -> Any:
    return replace(
        segment(index, version),
        observation_text=HOSTILE,
        action_text=HOSTILE,
        action_raw=b"\xff\x00raw",
        tool_calls=(ToolCall("run", {"code": "a = 1\nprint('<b>')", "n": 3}), ToolCall("", None, "no name")),
        tool_results=(ToolResult("run", LONG, duration_s=0.25), ToolResult("run", HOSTILE, is_error=True, raw=b"\x00\xfe")),
        timings=Timings(0.1, 0.2, 0.3),
    )
