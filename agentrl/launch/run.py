"""One run from start to summary: create it, run its processes, stop them in order.

Invariants
- clean_stop: Ctrl-C leaves no process, no container and no lost row, and prints the resume command.
- final_evaluation: a run that reached its target ends only after its last evaluation was scored.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row, to_row
from agentrl.environment.base import checked_tasks
from agentrl.environment.registry import load
from agentrl.errors import UsageError
from agentrl.launch.plan import Plan
from agentrl.launch.processes import RunProcesses
from agentrl.launch.summary import print_summary
from agentrl.store.contract import RunRow, RunSpec, TrajectoryStore
from agentrl.types import Task

POLL_S = 0.5
STOP_S = 30.0
"""Time the processes get to finish what they hold after a stop was asked for."""
TASKS_PER_EPOCH = 20_000
TELL_S = 10.0
"""How often progress is told while nothing else is printed."""


class _Stop:
    """Counts interrupts: the first asks, the second insists."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def create_run(plan: Plan, store: TrajectoryStore) -> RunRow:
    """Write the run's row, its tasks and its folder."""
    config = plan.config
    environment = load(config.environment)
    split = config.evaluation.split
    n_evaluated = max(config.evaluation.episodes, config.evaluation.episodes_during)
    tasks: dict[str, list[Task]] = {
        "train": checked_tasks(environment, "train", config.seed, TASKS_PER_EPOCH),
        split: checked_tasks(environment, split, config.seed, n_evaluated),
    }
    spec = RunSpec(
        name=plan.name,
        environment=config.environment,
        config=to_row(config, plan.folder),
        config_hash=plan.resolved.hash,
        seed=config.seed,
        lag_bound=config.staleness.bound,
        batch_min=config.trainer.batch,
        batch_max=config.trainer.batch,
        group_size=config.algorithm.group_size,
        target_steps=config.trainer.steps,
        max_running=config.rollout.concurrency * config.rollout.workers,
        max_attempts=config.rollout.max_attempts,
        lease_s=config.rollout.lease_s,
    )
    (plan.folder / "logs").mkdir(parents=True)
    (plan.folder / "config.json").write_text(json.dumps(spec.config, indent=2) + "\n")
    return store.create_run(spec, tasks)


def execute(run: RunRow, store: TrajectoryStore) -> int:
    """Run until the target, an interrupt or a failure. The exit code for the shell."""
    config, folder = from_row(run.spec.config)
    if run.step >= config.trainer.steps:
        raise UsageError(f"Run {run.spec.name} has already reached its {config.trainer.steps} steps.")
    started = time.monotonic()
    processes = RunProcesses(run.spec.name, folder, config.rollout.workers)
    store.set_run_status(run.id, "running")
    status = "failed"
    with _interrupts() as stop:
        try:
            processes.start()
            status = _supervise(run, config, processes, store, stop)
        finally:
            _stop_all(processes, stop)
            store.set_run_status(run.id, status)
    print_summary(store, run, folder, status, time.monotonic() - started)
    return 0 if status == "finished" else 130


def _supervise(run: RunRow, config: RunConfig, processes: RunProcesses, store: TrajectoryStore, stop: _Stop) -> str:
    trained, told = False, time.monotonic()
    while not stop.count:
        row = store.find_run(run.spec.name)
        assert row is not None, f"the row of run {run.spec.name} was deleted"
        trained = trained or processes.watch(row.step)
        if trained:
            scoring = store.pending_evaluation(run.id)
            if scoring is None:
                return "finished"
            if time.monotonic() - told >= TELL_S:
                told = time.monotonic()
                print(f"  scoring version {scoring.version}: {scoring.done}/{scoring.n} episodes", flush=True)
        time.sleep(POLL_S)
    print("Stopping: finishing the step in hand and saving a checkpoint. Ctrl-C again stops at once.", flush=True)
    return "interrupted"


def _stop_all(processes: RunProcesses, stop: _Stop) -> None:
    processes.stop()
    asked = stop.count
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline and stop.count <= asked:
        if processes.wait(POLL_S):
            return
    processes.kill()
    processes.wait(STOP_S)


@contextmanager
def _interrupts() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
