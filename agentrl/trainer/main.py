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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import torch

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row
from agentrl.engine.sglang.loading import locks_folder
from agentrl.environment.registry import load
from agentrl.errors import Fenced, RunFailed, UnknownOutcome
from agentrl.model.config import ModelConfig
from agentrl.model.model_dir import open_model_dir
from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import Checkpoint, RunRow, TrainerStart, TrajectoryStore
from agentrl.store.patience import outlasting
from agentrl.trainer.checkpointing import read_checkpoint, verify_checkpoint
from agentrl.trainer.console import Console
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.publish import Publisher, Push
from agentrl.trainer.push import ServerPush
from agentrl.trainer.reference import Reference
from agentrl.trainer.warm_start import WarmStartStopped, warm_started_model

EXIT_DONE, EXIT_STOPPED, EXIT_FENCED, EXIT_FAILED = 0, 130, 4, 5
START_RETRY_S = 0.5
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
        print(f"  trainer: {error}", flush=True)
        return EXIT_FENCED
    except RunFailed as error:
        log.error("run failed", error=str(error))
        print(f"agentrl: {error}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    except Exception:  # the process boundary: the log keeps the traceback, the launcher the exit code
        log.error("trainer failed")
        raise


def _train(store: TrajectoryStore, run: RunRow, config: RunConfig, folder: Path, log: ProcessLog, stop: threading.Event) -> int:
    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    torch.manual_seed(config.seed)
    console = Console(config.trainer.steps)
    model_dir = _model_dir(config, folder, console, log, stop)
    log.cpu("model ready", folder=str(model_dir))
    start, checkpoint = _start(store, run, config.trainer.lease_s, console, stop)
    with _renewed(store, run.id, start.fence, config.trainer.lease_s, stop):
        loop = None
        try:
            loop = _build_loop(store, run, config, folder, log, console, stop, start, model_dir, checkpoint)
            return EXIT_DONE if loop.train() else EXIT_STOPPED
        finally:
            log.cpu("trainer ends")
            # A batch that makes the update fail is charged when its lease lapses; a release would hand it out for ever.
            if loop is None or not loop.in_update:
                store.release_trainer(run.id, start.fence)


def _start(
    store: TrajectoryStore, run: RunRow, lease_s: float, console: Console, stop: threading.Event
) -> tuple[TrainerStart, Checkpoint | None]:
    """Start from the newest checkpoint that verifies, once the holder's lease has lapsed.

    A holder that died leaves a lease of ``lease_s`` at most; one that holds it for longer lives: `Fenced`.
    """
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    deadline = time.monotonic() + lease_s * PATIENCE
    said = False
    while True:
        checkpoint = next((c for c in store.checkpoints(run.id) if verify_checkpoint(c)), None)
        try:
            start = store.start_trainer(run.id, owner=owner, lease_s=lease_s, checkpoint=checkpoint.id if checkpoint else None)
        except Fenced as error:
            if not said:
                console.say(f"waiting for a lease: {error}")
                said = True
            if time.monotonic() > deadline or stop.wait(START_RETRY_S):
                raise
        else:
            return start, checkpoint


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
    checkpoint: Checkpoint | None,
) -> TrainerLoop:
    policy, critic = build_models(config, model_dir)
    reference = build_reference(config, model_dir)
    publisher = Publisher(store, run.id, start, folder / "weights", _push(config, run, folder, model_dir, log))
    if checkpoint is not None:
        restore(read_checkpoint(checkpoint), policy, critic, reference)
    first = start.version is None
    version = start.version or publisher.publish(policy.export(), parent=None, updates=0)
    log.gauge(step=start.step, policy_version=version.version)
    log.info("trainer starts", fence=start.fence, branch=start.branch, returned=start.returned, dropped=start.dropped)
    if not first:
        console.say(
            f"resumed at step {start.step} (version {version.version}): "
            f"{start.returned} items back to ready, {start.dropped} dropped"
        )
    loop = TrainerLoop(store, run, config, folder, start, version, policy, critic, publisher, log, console, stop, reference)
    if first and config.evaluation.episodes:
        loop.request_evaluation(config.evaluation.episodes)
    return loop


def _push(config: RunConfig, run: RunRow, folder: Path, model_dir: Path, log: ProcessLog) -> Push | None:
    """How new weights reach the engines without their file; None: not at all, they read it."""
    engine = config.engine
    if engine.kind == "local" or engine.transport == "disk":
        return None
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    return ServerPush(
        engine.server_urls,
        ModelConfig.read(model_dir),
        run.spec.name,
        locks_folder(folder),
        engine.transport,
        backend,
        config.staleness.refresh_every,
        lambda line: log.warning("push", error=line),
    )


def restore(state: Mapping[str, Any], policy: TrainedModel, critic: TrainedModel | None, reference: Reference | None) -> None:
    """Weights, optimizers and the KL coefficient as a checkpoint holds them."""
    policy.load_state_dict(state["policy"])
    if critic is not None:
        critic.load_state_dict(state["critic"])
    if reference is not None and state.get("kl_coefficient") is not None:
        reference.coefficient = state["kl_coefficient"]


def build_models(config: RunConfig, model_dir: Path) -> tuple[TrainedModel, TrainedModel | None]:
    """Policy and critic, both from the weights of ``model_dir``; the critic's head is new."""
    trainer = config.trainer
    model = open_model_dir(model_dir)
    hf, weights = model.config.raw, dict(model.tensors())
    settings = OptimizerSettings(beta2=trainer.beta2, weight_decay=trainer.weight_decay, clip_grad=trainer.clip_grad)
    policy = TrainedModel(hf, "policy", weights.items(), settings, max_tokens=trainer.micro_batch_tokens)
    critic_config = config.algorithm.critic
    if critic_config is None:
        return policy, None
    settings = OptimizerSettings(beta2=trainer.beta2, clip_grad=critic_config.clip_grad)
    critic = TrainedModel(
        hf,
        "critic",
        weights.items(),
        settings,
        freeze_attention=critic_config.freeze_attention,
        max_tokens=trainer.micro_batch_tokens,
    )
    return policy, critic


def build_reference(config: RunConfig, model_dir: Path) -> Reference | None:
    """The policy of ``model_dir`` once more, for the distance to it; None when no setting reads it."""
    if not config.algorithm.needs_reference:
        return None
    model = open_model_dir(model_dir)
    policy = TrainedModel(
        model.config.raw, "policy", model.tensors(), OptimizerSettings(), max_tokens=config.trainer.micro_batch_tokens
    )
    return Reference(policy, config.algorithm.kl, config.algorithm.kl.coefficient)


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
def _renewed(store: TrajectoryStore, run: int, fence: int, lease_s: float, stop: threading.Event) -> Iterator[None]:
    """Keep the trainer lease alive from a thread; when it is lost, the next fenced call fails."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / 3):
            try:
                store.renew_trainer(run, fence, lease_s)
            except Fenced:
                stop.set()
                return
            except UnknownOutcome:
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
