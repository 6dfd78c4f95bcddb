"""One run from start to summary: create it, run its processes, stop them in order.

Invariants
- clean_stop: Ctrl-C leaves no process, no container and no lost row, and prints the resume command.
- database_comes_back: a private server that is killed is started again; one that the user named is only waited for.
- patient_stop: however long the step in hand takes, the trainer ends it and saves a checkpoint; only a second Ctrl-C kills it.
- final_evaluation: a run that reached its target ends only after its last weights were scored. A trainer that died before it
  asked for that score goes back to its checkpoint.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row, to_row
from agentrl.environment.base import checked_tasks
from agentrl.environment.registry import load
from agentrl.errors import AgentRLError, NotReadyError, UsageError
from agentrl.launch.alerts import Alerts
from agentrl.launch.drops import Drops
from agentrl.launch.engine_servers import engine_servers
from agentrl.launch.plan import Plan
from agentrl.launch.processes import RunProcesses
from agentrl.launch.summary import print_summary
from agentrl.monitor.terminal import say
from agentrl.store.connect import database_url
from agentrl.store.contract import RunRow, RunSpec, TrajectoryStore
from agentrl.store.patience import outlasting
from agentrl.types import Task

POLL_S = 0.5
STOP_S = 30.0
"""Time the other processes get, once the trainer has ended, to finish what they hold."""
TASKS_PER_EPOCH = 20_000
TELL_S = 10.0
"""How often progress is told while nothing else is printed."""


class _Stop:
    """Counts interrupts: the first asks, the second insists. A closed terminal only asks: it may send its signal twice."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count = max(self.count, 1) if number == signal.SIGHUP else self.count + 1


def draw_tasks(config: RunConfig) -> dict[str, list[Task]]:
    """The tasks of a run by split. `UsageError` or `EnvironmentFault` for data or an environment that is at fault."""
    environment = load(config.environment, config.environment_options)
    split = config.evaluation.split
    used = ("episodes", "episodes_during") if config.evaluation.every else ("episodes",)
    n_evaluated = max(getattr(config.evaluation, k) for k in used)
    held_out = checked_tasks(environment, split, config.seed, n_evaluated)
    if len(held_out) < n_evaluated:
        too_many = [k for k in used if getattr(config.evaluation, k) > len(held_out)]
        raise UsageError(
            f"Environment {config.environment} has {len(held_out)} tasks in split '{split}', fewer than are to be scored: set "
            + " ".join(f"evaluation.{k}={len(held_out)}" for k in too_many)
        )
    return {"train": checked_tasks(environment, "train", config.seed, TASKS_PER_EPOCH), split: held_out}


def create_run(plan: Plan, store: TrajectoryStore) -> RunRow:
    """Write the run's row, its tasks and its folder."""
    config, pace = plan.config, plan.config.pace
    environment = load(config.environment, config.environment_options)
    tasks = draw_tasks(config)
    spec = RunSpec(
        name=plan.name,
        environment=config.environment,
        config=to_row(config, plan.folder),
        config_hash=plan.resolved.hash,
        seed=config.seed,
        lag_bound=pace.lag_bound,
        batch_min=pace.batch_min,
        batch_max=pace.batch_max,
        ahead=pace.ahead,
        staleness_mode=config.staleness.mode,
        group_extra=config.rollout.group_redundancy,
        oversample=config.oversample,
        group_size=config.algorithm.group_size,
        target_steps=config.trainer.steps,
        max_running=config.rollout.concurrency * max(1, config.rollout.workers),
        # A worker that dies can't say what its episode had called: only what may be repeated at any point gets another attempt.
        max_attempts=config.rollout.max_attempts if environment.is_repeatable else 1,
        lease_s=config.rollout.lease_s,
        max_age_s=config.staleness.max_age_s,
        group_deadline_s=config.staleness.group_deadline_s,
        long_tokens=config.trainer.long_tokens,
        long_share=config.trainer.long_share or 0.0,
        long_wait_s=config.trainer.long_wait_s,
        resume_partial=config.rollout.resume_partial,
        origins=config.trainer.origins,
    )
    try:
        (plan.folder / "logs").mkdir(parents=True)
        (plan.folder / "config.json").write_text(json.dumps(spec.config, indent=2) + "\n")
    except OSError as error:
        raise NotReadyError(
            f"The run's folder {plan.folder} can't be made: {error}. AGENTRL_RUNS names another place."
        ) from None
    try:
        return store.create_run(spec, tasks)
    except BaseException:
        shutil.rmtree(plan.folder)  # the name stays free
        raise


def execute(run: RunRow, store: TrajectoryStore) -> int:
    """Run until the target, an interrupt or a failure. The exit code for the shell."""
    config, folder = from_row(run.spec.config)
    trains = run.step < config.trainer.steps or not _score_was_asked_for(run, store)
    if not trains and store.pending_evaluation(run.id) is None:
        raise UsageError(f"Run {run.spec.name} has already reached its {config.trainer.steps} steps.")
    started = time.monotonic()
    with _only_launcher(run, folder), _interrupts() as stop:
        store = outlasting(store, config.store.outage_s, lambda: stop.count > 0, _bear_outage)
        processes = RunProcesses(
            run.spec.name, folder, config.rollout.workers, config.reward.workers, engine_servers(config, folder)
        )
        status, failure = "failed", None
        store.set_run_status(run.id, "running")
        if not config.rollout.workers:
            say(f"  outside agents act in it through `agentrl gateway --run {run.spec.name}`")
        try:
            processes.start(trains=trains)
            status = _supervise(run, processes, store, stop)
        except AgentRLError as error:
            failure = error
        finally:
            _stop_all(processes, stop)
            store.set_run_status(run.id, status)
    print_summary(store, run, folder, status, time.monotonic() - started)
    if failure is not None:
        raise failure
    return 0 if status == "finished" else 130


def _score_was_asked_for(run: RunRow, store: TrajectoryStore) -> bool:
    """Whether there is an evaluation of the run's newest weights, finished or not."""
    asked = [result.evaluation for result in store.evaluation_results(run.id)]
    pending = store.pending_evaluation(run.id)
    return any(e.updates >= run.updates for e in [*asked, *([] if pending is None else [pending])])


@contextmanager
def _only_launcher(run: RunRow, folder: Path) -> Iterator[None]:
    """A run has one launcher on a host: two would start twice the workers and fence each other's trainer."""
    try:
        lock = (folder / "launcher.lock").open("a")
    except OSError as error:
        raise UsageError(
            f"The folder of run {run.spec.name}, with its weights and checkpoints, can't be used: {error}"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"Run {run.spec.name} is running already on this machine.") from None
        yield


def _bear_outage(line: str) -> None:
    say(f"  waiting for the database: {line}")
    time.sleep(POLL_S)  # a server that is just dying counts as running
    try:
        database_url()  # starts the private server if it was killed, e.g. for want of memory
    except NotReadyError as error:
        say(f"  {error}")


def _supervise(run: RunRow, processes: RunProcesses, store: TrajectoryStore, stop: _Stop) -> str:
    told, drops, alerts = time.monotonic(), Drops(run.spec.name), Alerts(run.spec.name)
    while not stop.count:
        row = store.find_run(run.spec.name)
        assert row is not None, f"the row of run {run.spec.name} was deleted"
        trained = processes.watch(row.step)
        drops.look(store)
        alerts.look(store)
        if trained:
            scoring = store.pending_evaluation(run.id)
            if scoring is None:
                return "finished"
            if time.monotonic() - told >= TELL_S:
                told = time.monotonic()
                say(f"  scoring version {scoring.version}: {scoring.done}/{scoring.n} episodes")
        time.sleep(POLL_S)
    say("Stopping: finishing the step in hand and saving a checkpoint. Ctrl-C again stops at once.")
    return "interrupted"


def _stop_all(processes: RunProcesses, stop: _Stop) -> None:
    processes.stop()
    asked, began = min(stop.count, 1), time.monotonic()
    told, deadline = began, began + STOP_S
    while time.monotonic() < deadline and stop.count <= asked:
        if processes.wait(POLL_S):
            return
        now = time.monotonic()
        if processes.trainer is not None and processes.trainer.code is None:
            deadline = now + STOP_S
            if now - told >= TELL_S:
                told = now
                say(f"  waiting for the trainer to finish its step and save it, {now - began:.0f} s so far")
    processes.kill()
    processes.wait(STOP_S)


@contextmanager
def _interrupts() -> Iterator[_Stop]:
    stop = _Stop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else started by nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
