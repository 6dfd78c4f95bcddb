"""The trainer process: warm start if the run has no model yet, then start or resume, train, release.

Exit codes: 0 target reached, 130 stopped (a checkpoint was saved), 4 fenced out by another trainer that lives, 5 the run can't
go on, 1 crashed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from uuid import UUID, uuid4

import torch

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row
from agentrl.engine.sglang.loading import locks_folder
from agentrl.environment.registry import load
from agentrl.errors import CommitRefused, EnvironmentFault, Fenced, NotReadyError, RunFailed, TokenDrift, UnknownOutcome
from agentrl.model.config import ModelConfig
from agentrl.monitor.log import ProcessLog
from agentrl.monitor.terminal import say
from agentrl.store.contract import Checkpoint, RunRow, TrainerStart, TrajectoryStore
from agentrl.store.loads import EngineLoad
from agentrl.store.patience import outlasting
from agentrl.trainer.channel import Channel
from agentrl.trainer.checkpointing import verify_checkpoint
from agentrl.trainer.console import Console
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.megatron.build import alone, join_world
from agentrl.trainer.models import build_companions, build_models
from agentrl.trainer.publish import Publisher, Push
from agentrl.trainer.push import ServerPush
from agentrl.trainer.team import Team, dismissed
from agentrl.trainer.warm_start import WarmStartStopped, warm_started_model
from agentrl.weights.pruning import Pruning

EXIT_DONE, EXIT_STOPPED, EXIT_FENCED, EXIT_FAILED = 0, 130, 4, 5
START_RETRY_S = 0.5
Leases = Sequence[tuple[UUID, int]]
PATIENCE = 1.25
"""A start waits this many leases for its predecessor's to lapse."""


def run_trainer(store: TrajectoryStore, run: RunRow) -> int:
    """Train ``run`` in this process; the exit code."""
    config, folder = from_row(run.spec.config)
    log = ProcessLog(folder / "logs", "trainer")
    stop = threading.Event()
    _on_signal(stop)
    store = outlasting(
        store, config.store.outage_s, stop.is_set, lambda line: log.warning("waiting for the database", call=line)
    )
    try:
        return _train(store, run, config, folder, log, stop)
    except WarmStartStopped:
        return EXIT_STOPPED
    except Fenced as error:
        log.error("fenced out", error=str(error))
        say(f"  trainer: {error}")
        return EXIT_FENCED
    except (RunFailed, EnvironmentFault, TokenDrift) as error:
        log.error("run failed", error=str(error))
        print(f"agentrl: {error}", file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, EnvironmentFault) else EXIT_FAILED
    except Exception:  # the process boundary: the log keeps the traceback, the launcher the exit code
        log.error("trainer failed")
        raise


def _train(store: TrajectoryStore, run: RunRow, config: RunConfig, folder: Path, log: ProcessLog, stop: threading.Event) -> int:
    _prepare(config)
    console = Console(config.trainer.steps)
    with alone():
        model_dir = _model_dir(config, folder, console, log, stop)
    log.cpu("model ready", folder=str(model_dir))
    start, checkpoint = _start(store, run, config.trainer.lease_s, console, stop)
    loop: TrainerLoop | None = None
    with _renewed(store, run.id, start.fence, config.trainer.lease_s, stop, lambda: loop.leases if loop else ()):
        try:
            with dismissed(_gather_team(config, model_dir, checkpoint)) as team:
                loop = _build_loop(store, run, config, folder, log, console, stop, start, model_dir, team, checkpoint)
                return EXIT_DONE if loop.train() else EXIT_STOPPED
        finally:
            log.cpu("trainer ends")
            # A batch that makes the update fail is charged when its lease lapses; a release would hand it out for ever.
            if loop is None or not loop.in_update:
                store.release_trainer(run.id, start.fence)


def follow() -> int:
    """What every rank but the first does: hear which models to build, then do as told. The exit code.

    A signal to all ranks is for the first one: it can't finish its step and save it without the others.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    join_world()
    channel = Channel()
    if (told := channel.hear()) is not None:
        config, model_dir, uri = told
        _prepare(config)
        _team(config, model_dir, uri, channel).follow()
    return EXIT_DONE


def _prepare(config: RunConfig) -> None:
    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    torch.manual_seed(config.seed)


def _gather_team(config: RunConfig, model_dir: Path, checkpoint: Checkpoint | None) -> Team:
    join_world()
    channel = Channel()
    uri = checkpoint.uri if checkpoint else None
    channel.tell((config, model_dir, uri))
    return _team(config, model_dir, uri, channel)


def _team(config: RunConfig, model_dir: Path, checkpoint_uri: str | None, channel: Channel) -> Team:
    """The models on this rank, at the checkpoint if there is one. All ranks call it together."""
    policy, critic = build_models(config, model_dir)
    team = Team(policy, critic, channel, build_companions(config, model_dir))
    if checkpoint_uri is not None:
        team.load_here(checkpoint_uri)
    return team


def _start(
    store: TrajectoryStore, run: RunRow, lease_s: float, console: Console, stop: threading.Event
) -> tuple[TrainerStart, Checkpoint | None]:
    """Start from the newest checkpoint that verifies, once the holder's lease has lapsed.

    A holder that died leaves a lease of ``lease_s`` at most; one that holds it for longer lives: `Fenced`. `NotReadyError` when
    there are checkpoints and none verifies: a start without one would abandon every step for good.
    """
    whole = _Whole(console)
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    deadline: float | None = None
    while True:
        checkpoints = store.checkpoints(run.id)
        checkpoint = next(filter(whole, checkpoints), None)
        if checkpoints and checkpoint is None:
            raise NotReadyError(
                f"No checkpoint of run {run.spec.name} is whole; the newest of {len(checkpoints)} should be in "
                f"{checkpoints[0].uri}. Is its disk mounted here? Nothing was given up: resume when it is there again."
            )
        try:
            start = store.start_trainer(run.id, owner=owner, lease_s=lease_s, checkpoint=checkpoint.id if checkpoint else None)
        except Fenced as error:
            if deadline is None:  # only now: reading checkpoints, and an outage of the store, take their own time
                deadline = time.monotonic() + lease_s * PATIENCE
                console.say(f"waiting for a lease: {error}")
            if time.monotonic() > deadline or stop.wait(START_RETRY_S):
                raise
        else:
            return start, checkpoint


@dataclass
class _Whole:
    """Whether a checkpoint is whole: each is read once, and one that is not is told."""

    console: Console
    _known: dict[int, bool] = field(default_factory=dict)

    def __call__(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.id not in self._known:
            self._known[checkpoint.id] = verify_checkpoint(checkpoint)
            if not self._known[checkpoint.id]:
                self.console.say(
                    f"the checkpoint of step {checkpoint.step} is passed over: files in {checkpoint.uri} are missing or changed"
                )
        return self._known[checkpoint.id]


def _build_loop(
    store: TrajectoryStore,
    run: RunRow,
    config: RunConfig,
    folder: Path,
    log: ProcessLog,
    console: Console,
    stop: threading.Event,
    start: TrainerStart,
    model_dir: Path,
    team: Team,
    checkpoint: Checkpoint | None,
) -> TrainerLoop:
    weights = folder / "weights"
    pruning = Pruning(weights, int(config.trainer.weights_gb * 1e9), max(2, config.staleness.refresh_every + 1))
    push = _push(config, store, run, start, folder, model_dir, log)
    publisher = Publisher(store, run.id, start, weights, push, pruning, int(config.trainer.max_shard_gb * 1e9))
    first = start.version is None
    version = start.version or publisher.publish(team.weights, parent=None, updates=0)
    log.gauge(step=start.step, policy_version=version.version)
    log.info("trainer starts", fence=start.fence, branch=start.branch, returned=start.returned, dropped=start.dropped)
    if not first:
        console.say(
            f"resumed at step {start.step} (version {version.version}): "
            f"{start.returned} items back to ready, {start.dropped} dropped"
        )
    loop = TrainerLoop(store, run, config, folder, start, version, team, publisher, log, console, stop)
    if first and config.evaluation.episodes:
        loop.request_evaluation(config.evaluation.episodes)
    return loop


def _push(
    config: RunConfig, store: TrajectoryStore, run: RunRow, start: TrainerStart, folder: Path, model_dir: Path, log: ProcessLog
) -> Push | None:
    """How new weights reach the engines without their file; None: not at all, they read it."""
    engine = config.engine
    if engine.kind == "local" or engine.transport == "disk":
        return None
    backend = "nccl" if torch.cuda.is_available() else "gloo"

    def record(load: EngineLoad) -> None:
        store.record_engine_load(run.id, replace(load, fence=start.fence))

    return ServerPush(
        engine.server_urls,
        ModelConfig.read(model_dir),
        run.spec.name,
        locks_folder(folder),
        engine.transport,
        backend,
        config.staleness.refresh_every,
        lambda line: log.warning("push", error=line),
        record,
    )


def _model_dir(config: RunConfig, folder: Path, console: Console, log: ProcessLog, stop: threading.Event) -> Path:
    """The given model, or the run's own warm-started one, made now if it is not there yet."""
    if config.model.path:
        return Path(config.model.path)
    target = folder / "model"
    if not target.exists():
        made = warm_started_model(config, load(config.environment, config.environment_options), console, log, stop)
        partial = folder / f"model.partial-{os.getpid()}"
        shutil.copytree(made, partial)
        partial.rename(target)
    return target


@contextmanager
def _renewed(
    store: TrajectoryStore, run: int, fence: int, lease_s: float, stop: threading.Event, held: Callable[[], Leases]
) -> Iterator[None]:
    """Keep the trainer lease, and those of what it has ``held`` since a claim, alive from a thread; when one is lost, the
    next fenced call fails."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / 3):
            try:
                store.renew_trainer(run, fence, lease_s)
                if leases := held():
                    store.renew_leases(run, fence, leases, lease_s)
            except Fenced:
                stop.set()
                return
            except (UnknownOutcome, CommitRefused):  # refused: committed in this moment, or lost, which the commit will say
                continue

    thread = threading.Thread(target=renew, daemon=True, name="trainer-lease")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=lease_s)


def _on_signal(stop: threading.Event) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
