"""Memory of the client while a 500,000-token, 200-turn trajectory is written turn by turn and read whole.

Each in a process of its own.
"""

from __future__ import annotations

import time

from agentrl.store.postgres import PostgresStore
from benchmarks.report import Row, at_most
from benchmarks.store.context import Context
from benchmarks.store.processes import children
from benchmarks.store.server import database
from benchmarks.store.world import Run

TOKENS, TURNS = 500_000, 200


def measure(context: Context) -> list[Row]:
    tokens, turns = context.size(TOKENS, 50_000), context.size(TURNS, 20)
    rows = []
    with database(context.server) as url:
        store = PostgresStore(url, pool_size=1)
        setup = {"url": url, "run": Run(store).id, "version": 0, "tokens": tokens, "turns": turns}
        store.close()
        trajectory = ""
        for what in ("write", "read"):
            with children(1, "reader", **setup) as (child,):
                began = time.perf_counter()
                found = child.ask("write") if what == "write" else child.ask("read", trajectory=trajectory)
                wall = time.perf_counter() - began
            trajectory = found.get("trajectory", trajectory)
            assert what == "write" or (found["turns"], found["tokens"]) == (turns, tokens // turns * turns), found
            done = "written turn by turn" if what == "write" else "read whole"
            rows.append(
                at_most(f"{tokens:,} tokens in {turns} turns {done}: memory above the interpreter's base",
                        f"{found['grown'] / 1e6:.1f} MB in {1e3 * wall:,.0f} ms", f"payload {found['payload'] / 1e6:.1f} MB",
                        found["grown"] / found["payload"], 2.0)
            )  # fmt: skip
    return rows
