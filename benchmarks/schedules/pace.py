"""Each schedule on one trace: settings of the same loop, and what they cost.

Beside them, generation inside the trainer's process: one batch is generated in lock-step, turn by turn, then trained on.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.schedules.ideal import Ideal
from benchmarks.schedules.timed import Outcome, Trace, config_of, make_trace, timed_run
from benchmarks.store.server import database, server

GROUP = 4
COLUMNS = ("schedule", "wall s", "trained a second", "bound", "against synchronous", "rollout idle", "trainer idle", "dropped",
           "carried over", "trained by lag")  # fmt: skip
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "synchronous": ("trainer.schedule=synchronous",),
    "drop_last (1/16)": ("trainer.schedule=drop_last", "trainer.drop_share=0.0625"),
    "pipelined": ("trainer.schedule=pipelined",),
    "group_async, lag 1": ("trainer.schedule=group_async", f"algorithm.group_size={GROUP}", "staleness.lag=1"),
    "async, lag 1": ("trainer.schedule=async", "staleness.lag=1"),
    "async, lag 4": ("trainer.schedule=async", "staleness.lag=4"),
}


def measure(quick: bool = False) -> None:
    """Print a row for each schedule as it ends."""
    trace = make_trace(batch=16, steps=1, turns=1, median_s=0.01) if quick else make_trace(
        batch=32, steps=12, turns=4, median_s=0.25)  # fmt: skip
    print(
        f"{trace.steps} updates of {trace.batch} trajectories, {trace.slots} episodes at once, {len(trace.seconds[0])} tool "
        f"calls each, log-normal with sigma 1; the trainer takes {trace.each_s:g} s a trajectory and {trace.step_s:g} s an "
        f"update. The bound is the schedule's rate when everything else costs nothing.\n"
    )
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    wall = asyncio.run(inside(trace))
    rate = trace.batch * trace.steps / wall
    busy = sum(map(sum, trace.seconds[: trace.batch * trace.steps])) + trace.batch * trace.steps * trace.model_s * _turns(trace)
    update = trace.steps * (trace.step_s + trace.each_s * trace.batch)
    inside_cells = [f"{1 - busy / (wall * trace.slots):.0%}", f"{1 - update / wall:.0%}", "0", "0", "0: 100%"]
    with server(None) as url, database(url) as fresh, tempfile.TemporaryDirectory() as folder:
        base = 0.0
        for number, (name, overrides) in enumerate(SCHEDULES.items()):
            config = config_of(trace, *overrides, preset="grpo" if "group" in name else "sao")
            found = timed_run(fresh, Path(folder) / f"run-{number}", trace, config)
            if not base:
                base = found.trained / found.wall_s
                _print("inside the trainer", wall, [f"{rate:.1f}", "", f"{rate / base:.2f}", *inside_cells])
            best = Ideal(trace, config.pace, config.algorithm.group_size).run()
            own = found.trained / found.wall_s
            _print(name, found.wall_s, [f"{own:.1f}", f"{best.trained / best.now:.1f}", f"{own / base:.2f}", *_cells(found)])


async def inside(trace: Trace) -> float:
    """Wall seconds of a loop that generates a batch in lock-step: each turn waits for the slowest tool call of the batch."""
    began = time.monotonic()
    for step in range(trace.steps):
        rows = trace.seconds[step * trace.batch : (step + 1) * trace.batch]
        for turn in range(_turns(trace)):
            await asyncio.sleep(trace.model_s)
            await asyncio.gather(*(asyncio.sleep(row[turn]) for row in rows if turn < len(row)))
        await asyncio.sleep(trace.each_s * trace.batch + trace.step_s)
    return time.monotonic() - began


def _turns(trace: Trace) -> int:
    """Turns of an episode: one for each tool call, and the answer."""
    return len(trace.seconds[0]) + 1


def _cells(found: Outcome) -> list[str]:
    lags = ", ".join(f"{lag}: {share:.0%}" for lag, share in sorted(found.lags.items()))
    return [f"{found.rollout_idle:.0%}", f"{found.trainer_idle:.0%}", str(found.dropped), str(found.carried_over), lags]


def _print(name: str, wall: float, cells: list[str]) -> None:
    print(f"| {name} | {wall:.1f} | {' | '.join(cells)} |", flush=True)
