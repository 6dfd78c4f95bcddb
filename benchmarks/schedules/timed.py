"""The trainer's own loop over a real store and a real worker, with models, tools and weights that only take time.

What is claimed, waited for, checked, committed and published is what a run does; only the numbers of the update are missing.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import TrainerStart
from agentrl.store.loads import PublishCost
from agentrl.store.postgres import PostgresStore
from agentrl.trainer.batch import Batch
from agentrl.trainer.console import Console
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.update import UpdateResult
from agentrl.types import PolicyVersion
from benchmarks.rollout.simulated import Simulation, simulation


@dataclass(frozen=True)
class Trace:
    """Seconds of each trajectory's tool calls by turn, and what everything else takes. ``slots``: episodes that run at once."""

    seconds: list[list[float]]
    batch: int
    steps: int
    slots: int
    model_s: float = 0.02
    """Of each turn."""
    each_s: float = 0.02
    """Forward and backward of a trajectory."""
    step_s: float = 0.1
    """Optimizer step."""
    publish_s: float = 0.05
    load_s: float = 0.0
    """Loading new weights in a worker; nothing is generated meanwhile."""


def make_trace(*, batch: int, steps: int, turns: int, median_s: float, load_s: float = 0.0) -> Trace:
    """Log-normal tool times (sigma 1), the same for each caller; enough for every schedule's tail."""
    chance = random.Random(0)
    seconds = [[median_s * chance.lognormvariate(0, 1) for _ in range(turns)] for _ in range(batch * (steps + 3))]
    return Trace(seconds, batch, steps, slots=batch, load_s=load_s)


@dataclass
class TimedTeam:
    """Stands where the models of all ranks do."""

    trace: Trace
    max_context: int = 1 << 20
    kl_coefficient: float | None = None

    def forward(self, rows: Sequence[Row]) -> list[Mapping[str, Tensor]]:
        """The log-probs that the simulated engine gave."""
        return [{"logprob": torch.full((len(row.positions),), -0.5)} for row in rows]

    def train(self, batch: Batch, settings: AlgorithmConfig, rate: float, policy: bool, lags: Sequence[Tensor]) -> UpdateResult:
        self.add_part(batch, lags)
        return self.finish_parts(rate)

    def begin_parts(self, settings: AlgorithmConfig, update_policy: bool) -> None:
        """Nothing was added yet."""

    def add_part(self, batch: Batch, lags: Sequence[Tensor]) -> None:
        time.sleep(self.trace.each_s * len(batch.trajectories))

    def finish_parts(self, rate: float) -> UpdateResult:
        time.sleep(self.trace.step_s)
        return UpdateResult(policy_updated=True, metrics={}, denominators={"policy": 1.0}, trained=[])

    def weights(self) -> list[tuple[str, Tensor]]:
        return []

    def start_saving(self, folder: Path, progress: Mapping[str, Any]) -> TimedSaving:
        return TimedSaving()

    def finish_saving(self) -> tuple[str, str]:
        return "no file", "no sum"


@dataclass(frozen=True)
class TimedSaving:
    """A checkpoint without a file."""

    written: bool = True
    seconds: float = 0.0


@dataclass
class TimedPublisher:
    """Publishes names; ``seconds`` as `agentrl.trainer.publish.Publisher` has it."""

    made: Simulation
    publish_s: float
    seconds: float = 0.0
    cost: PublishCost = field(default_factory=PublishCost)

    def publish(self, tensors: object, *, parent: int | None, updates: int) -> PolicyVersion:
        began = time.monotonic()
        time.sleep(self.publish_s)
        version = self.made.publish(updates, parent)
        self.seconds += time.monotonic() - began
        return version


class Silent(Console):
    """Says nothing."""

    def say(self, text: str) -> None:
        """Not here."""

    def step(self, *given: object) -> None:
        """Nor here."""


@dataclass(frozen=True)
class Outcome:
    """What a run of `timed_run` came to."""

    wall_s: float
    trained: int
    dropped: int
    carried_over: int
    rollout_idle: float
    """Share of the places for episodes in which nothing ran."""
    trainer_idle: float
    lags: Mapping[int, float]
    """Share of the trained trajectories by the lag of their oldest token."""
    loads: int
    trainer_sync: float
    """Share of the trainer's time in which it published."""
    made: Simulation = field(repr=False)

    @property
    def lag_mean(self) -> float:
        return sum(lag * share for lag, share in self.lags.items())


def config_of(trace: Trace, *overrides: str, preset: str = "sao") -> RunConfig:
    """A run's settings; ``overrides`` choose the schedule."""
    settings = [
        f"trainer.batch={trace.batch}", f"trainer.steps={trace.steps}", "trainer.checkpoint_every=100000", "evaluation.every=0",
        "evaluation.episodes=1", f"rollout.concurrency={trace.slots}", "store.poll_seconds=2.0", *overrides,
    ]  # fmt: skip
    if preset == "sao":
        settings.append("algorithm.critic.warmup_batches=0")
    return resolve(environment="code_agent", preset=preset, file=None, flags={}, overrides=settings).config


def timed_run(url: str, folder: Path, trace: Trace, config: RunConfig) -> Outcome:
    """Train to the target in the database at ``url``."""
    return asyncio.run(_timed_run(url, folder, trace, config))


async def _timed_run(url: str, folder: Path, trace: Trace, config: RunConfig) -> Outcome:
    store, pace = PostgresStore(url), config.pace
    try:
        made = simulation(
            store, folder, trace.seconds, concurrency=trace.slots, model_s=trace.model_s, load_s=trace.load_s,
            refresh_every=config.staleness.refresh_every, lag_bound=pace.lag_bound, batch_min=pace.batch_min,
            batch_max=pace.batch_max, ahead=pace.ahead, group_size=config.algorithm.group_size, target_steps=trace.steps,
        )  # fmt: skip
        first = made.publish(0, None)
        await made.engine.load(first)
        loop = _loop(made, folder, trace, config, first)
        stop = asyncio.Event()
        began = time.monotonic()
        serving = asyncio.create_task(made.worker.serve(stop))
        try:
            await asyncio.to_thread(loop.train)
            wall = time.monotonic() - began
            busy = made.engine.busy_s + made.environment.busy_s
        finally:
            stop.set()
            await serving
        return _outcome(store, made, trace, wall, busy)
    finally:
        store.close()


def _loop(made: Simulation, folder: Path, trace: Trace, config: RunConfig, first: PolicyVersion) -> TrainerLoop:
    row = made.store.find_run(made.run.spec.name)
    assert row is not None
    start = TrainerStart(made.fence, row.branch, 0, 0, first)
    team, publisher = cast(Any, TimedTeam(trace)), cast(Any, TimedPublisher(made, trace.publish_s))
    log = ProcessLog(folder, "trainer")
    return TrainerLoop(
        made.store, made.run, config, folder, start, first, team, publisher, log, Silent(trace.steps), threading.Event()
    )


def _outcome(store: PostgresStore, made: Simulation, trace: Trace, wall: float, busy: float) -> Outcome:
    name = made.run.spec.name
    (sums,) = store.rows(
        "select sum(n_trajectories)::bigint, sum((metrics ->> 'train_s')::float8),"
        " coalesce(sum((metrics ->> 'carried_over')::bigint), 0)::bigint,"
        " sum((metrics ->> 'sync_share')::float8 * (metrics ->> 'wall_s')::float8) from agentrl.step where run = %s",
        (made.run.id,),
    )
    trained, train_s, carried, sync_s = sums
    lags = {r["lag"]: r["share"] for r in store.query("staleness", run=name).records() if r["step"] is None}
    reasons = [r for r in store.query("dropped_by_reason", run=name).records() if r["reason"] != "cancelled"]
    return Outcome(
        wall, trained, sum(r["trajectories"] for r in reasons), carried, 1 - busy / (wall * trace.slots), 1 - train_s / wall,
        lags, made.engine.loads - 1, sync_s / wall, made,
    )  # fmt: skip
