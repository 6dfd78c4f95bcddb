"""How often workers load new weights, when a load stops generation for a while."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.schedules.timed import config_of, make_trace, timed_run
from benchmarks.store.server import database, server

EVERY = (1, 3, 5)
LAG = 5
LOAD_S = 1.0


def measure(quick: bool = False) -> None:
    """Print a row for each interval."""
    trace = make_trace(batch=8, steps=1, turns=1, median_s=0.01, load_s=0.05) if quick else make_trace(
        batch=32, steps=20, turns=4, median_s=0.15, load_s=LOAD_S)  # fmt: skip
    print(f"async with lag bound {LAG}; a load takes {trace.load_s:g} s, in which nothing is generated.\n")
    print("| load every | wall s | loads | publishing | rollouts stand still | mean lag | lags | dropped |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with server(None) as url, database(url) as fresh, tempfile.TemporaryDirectory() as folder:
        for every in EVERY:
            config = config_of(trace, f"staleness.refresh_every={every}", f"staleness.lag={LAG}", "trainer.schedule=async")
            found = timed_run(fresh, Path(folder) / f"every-{every}", trace, config)
            lags = ", ".join(f"{lag}: {share:.0%}" for lag, share in sorted(found.lags.items()))
            stall = found.loads * trace.load_s / found.wall_s
            print(
                f"| {every} | {found.wall_s:.1f} | {found.loads} | {found.trainer_sync:.1%} | {stall:.0%} "
                f"| {found.lag_mean:.2f} | {lags} | {found.dropped} |",
                flush=True,
            )
