"""Each schedule on one trace: settings of the same loop, and what they cost.

Beside them, generation inside the trainer's process: one batch is generated in lock-step, turn by turn, then trained on.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from agentrl.config.run import RunConfig
from benchmarks.schedules.ideal import Ideal
from benchmarks.schedules.timed import Trace, config_of, make_trace, timed_run
from benchmarks.store.server import database, server

GROUP = 4
COLUMNS = ("schedule", "wall s", "trained a second", "against synchronous", "rollout idle", "trainer idle", "dropped",
           "carried over", "trained by lag")  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "synchronous": ("trainer.schedule=synchronous",),
    "drop_last (1/16)": ("trainer.schedule=drop_last", "trainer.drop_share=0.0625"),
    "pipelined": ("trainer.schedule=pipelined",),
    "group_async, lag 1": ("trainer.schedule=group_async", f"algorithm.group_size={GROUP}", "staleness.lag=1"),
    "async, lag 1": ("trainer.schedule=async", "staleness.lag=1"),
    "async, lag 4": ("trainer.schedule=async", "staleness.lag=4"),
}


def measure(quick: bool = False) -> None:
    """Print a row for each schedule as it ends, after what each would come to if everything else cost nothing."""
    trace = make_trace(batch=16, steps=1, turns=1, median_s=0.01) if quick else make_trace(
        batch=32, steps=12, turns=4, median_s=0.25)  # fmt: skip
    print(
        f"{trace.steps} updates of {trace.batch} trajectories, {trace.slots} episodes at once, {len(trace.seconds[0])} tool "
        f"calls each, log-normal with sigma 1; the trainer takes {trace.each_s:g} s a trajectory, {trace.step_s:g} s an update "
        f"and {trace.publish_s:g} s a publication.\n"
    )
    _bounds(trace)
    print(f"\nMeasured:\n\n{HEADER}", flush=True)
    wall = asyncio.run(inside(trace))
    with server(None) as url, database(url) as fresh, tempfile.TemporaryDirectory() as folder:
        base = 0.0
        for number, (name, overrides) in enumerate(SCHEDULES.items()):
            found = timed_run(fresh, Path(folder) / f"run-{number}", trace, _config(trace, name, overrides))
            if not base:
                base = found.trained / found.wall_s
                _print("inside the trainer", wall, _total(trace), base, *_inside_idle(trace, wall), 0, 0, {0: 1.0})
            _print(
                name, found.wall_s, found.trained, base, found.rollout_idle, found.trainer_idle, found.dropped,
                found.carried_over, found.lags,
            )  # fmt: skip


def _bounds(trace: Trace) -> None:
    print(f"Bounds, when everything else costs nothing:\n\n{HEADER}", flush=True)
    base = 0.0
    for name, overrides in SCHEDULES.items():
        config = _config(trace, name, overrides)
        best = Ideal(trace, config.pace, config.algorithm.group_size).run()
        if not base:
            base = best.trained / best.now
            wall = sum(_lock_step(trace, step) for step in range(trace.steps))
            _print("inside the trainer", wall, _total(trace), base, *_inside_idle(trace, wall), 0, 0, {0: 1.0})
        lags = {lag: n / best.trained for lag, n in best.trained_by_lag.items()}
        _print(name, best.now, best.trained, base, best.rollout_idle, best.trainer_idle, best.dropped, best.carried_over, lags)


def _config(trace: Trace, name: str, overrides: tuple[str, ...]) -> RunConfig:
    return config_of(trace, *overrides, preset="grpo" if name.startswith("group") else "sao")


def _lock_step(trace: Trace, step: int) -> float:
    """Seconds of one round inside the trainer."""
    rows = trace.seconds[step * trace.batch : (step + 1) * trace.batch]
    slowest = [max(row[turn] for row in rows) for turn in range(len(rows[0]))]
    return sum(slowest) + _turns(trace) * trace.model_s + trace.each_s * trace.batch + trace.step_s


def _total(trace: Trace) -> int:
    return trace.batch * trace.steps


def _inside_idle(trace: Trace, wall: float) -> tuple[float, float]:
    """Of the places for episodes, and of the trainer's part of the work."""
    busy = sum(map(sum, trace.seconds[: _total(trace)])) + _total(trace) * trace.model_s * _turns(trace)
    return 1 - busy / (wall * trace.slots), 1 - trace.steps * (trace.step_s + trace.each_s * trace.batch) / wall


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


def _print(
    name: str, wall: float, trained: int, base: float, rollout_idle: float, trainer_idle: float, dropped: int, carried: int,
    lags: Mapping[int, float],
) -> None:  # fmt: skip
    rate = trained / wall
    spread = ", ".join(f"{lag}: {share:.0%}" for lag, share in sorted(lags.items()))
    cells = [
        name, f"{wall:.1f}", f"{rate:.1f}", f"{rate / base:.2f}", f"{rollout_idle:.0%}", f"{trainer_idle:.0%}",
        f"{dropped / (trained + dropped):.1%}", f"{carried / (trained + carried):.1%}", spread,
    ]  # fmt: skip
    print(f"| {' | '.join(cells)} |", flush=True)
