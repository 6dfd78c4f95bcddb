"""Pages of ``agentrl view`` over 100,000 stored trajectories: seconds from the request to the whole HTML."""

from __future__ import annotations

import statistics

from starlette.testclient import TestClient

from agentrl.store.reader import Reader
from agentrl.view.app import View
from benchmarks.report import Row, at_most, timed
from benchmarks.store.claims import filled
from benchmarks.store.context import Context

LONGEST_S = 1.0

_PAGES = {
    "run": "/runs/{run}",
    "list, newest first": "/runs/{run}/trajectories",
    "list, by reward": "/runs/{run}/trajectories?sort=reward",
    "list, of one place": "/runs/{run}/trajectories?place=consumed",
    "list, page 1,500": "/runs/{run}/trajectories?page=1500",
    "step": "/runs/{run}/steps/7",
    "trajectory": "/trajectories/{one}",
    "tokens of a trajectory": "/trajectories/{one}/tokens",
}


def measure(context: Context) -> list[Row]:
    stored = context.size(100_032, 1024)
    with filled(context, stored) as world:
        reader = Reader(world.url, connections=2)
        ((run, newest),) = reader.rows(
            "select run_name, trajectory from agentrl.v_trajectories order by trajectory desc limit 1"
        )
        try:
            return [
                _page(reader, f"{name}, {stored:,} stored", path.format(run=run, one=newest), context.size(5, 1))
                for name, path in _PAGES.items()
            ]
        finally:
            reader.close()


def _page(reader: Reader, name: str, path: str, rounds: int) -> Row:
    with TestClient(View(reader).app(["testserver"]), headers={"Accept": "text/html"}) as client:

        def ask() -> None:
            assert client.get(path).status_code == 200, path

        ask()
        seconds = statistics.median(timed(ask).wall for _ in range(rounds))
    return at_most(name, f"{seconds:.3f} s", f"{LONGEST_S:g} s", seconds / LONGEST_S, 1.0)
