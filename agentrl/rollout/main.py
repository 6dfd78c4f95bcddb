"""The rollout process: builds engine, sandbox pool and worker from the run's row, and serves until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterable
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row, model_folder
from agentrl.engine.contract import Engine
from agentrl.environment.base import Environment
from agentrl.environment.blocked_loop import told_when_blocked
from agentrl.environment.boxes import specs_of
from agentrl.environment.registry import load
from agentrl.monitor.log import ProcessLog
from agentrl.monitor.worker_process import run_worker
from agentrl.rollout.engines import open_engine, unless
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.upkeep import load_newest
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunRow, TrajectoryStore
from agentrl.store.patience import outlasting
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import Lineage, Origin, PolicyVersion, Sampling
from sandboxes.choose import choose
from sandboxes.contract import Provider, SandboxSpec
from sandboxes.pool import Pool

WAIT_S = 0.1
EVALUATION_POOL = 8
"""Sandboxes of the evaluation worker: nobody waits for it, so it need not be as fast as the training workers."""


def run_rollout(store: TrajectoryStore, run: RunRow, *, worker: str, evaluate: bool) -> int:
    """Until told to stop; the exit code, see `run_worker`."""
    config, folder = from_row(run.spec.config)
    role = "evaluation" if evaluate else f"rollout-{worker}"
    log = ProcessLog(folder / "logs", role)
    return run_worker(_serve(store, run, config, folder, role, evaluate, log), log)


async def _serve(
    store: TrajectoryStore, run: RunRow, config: RunConfig, folder: Path, role: str, evaluate: bool, log: ProcessLog
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = outlasting(
        store, config.store.outage_s, stop.is_set, lambda line: log.warning("waiting for the database", call=line)
    )
    if await first_version(store, run, stop) is None:
        return
    environment = load(config.environment, config.environment_options)
    provider, reason = await choose(
        None if config.sandbox.provider == "auto" else config.sandbox.provider, config.sandbox.unsafe_local_execution
    )
    model_dir = model_folder(config, folder)
    chat = ChatFormat(model_dir, tool_format=config.model.chosen_tool_format, follow=config.model.history == "template")
    log.info("chat format", tool_calls=f"{chat.tool_format} ({chat.tool_format_reason})", history=config.model.history)
    engine = await unless(stop, open_engine(config, run.spec.name, folder, model_dir, log, evaluate=evaluate))
    if engine is None:
        return
    size = config.sandbox.pool_size
    pool = Pool(provider, min(size, max(EVALUATION_POOL, environment.n_sandboxes)) if evaluate else size)
    sampling = Sampling(temperature=config.engine.temperature)
    name = f"{socket.gethostname()}:{os.getpid()}:{role}"
    log.info("rollout starts", worker=name, sandbox=reason, engine=engine.info.name)
    try:
        await load_newest(store, run, engine)
        runner = EpisodeRunner(environment, store, engine, chat, pool, sampling, grades=not config.reward.workers)
        if environment.has_sandbox_for:
            runner.sandbox_of = lambda task: digests(provider, specs_of(environment, task).values())
        lineage = lineage_of(environment, model_dir, chat, engine, sampling, await _sandboxes(environment, provider))
        worker = RolloutWorker(store, run, name, engine, runner, lineage, config.rollout.concurrency, log, evaluate,
                               poll_s=config.store.poll_seconds, refresh_every=config.staleness.refresh_every)  # fmt: skip
        with told_when_blocked(lambda line: log.warning("event loop blocked", why=line)):
            await worker.serve(stop)
    finally:
        await pool.close()
        await engine.close()
        log.cpu("rollout ends", **pool.metrics())


async def first_version(store: TrajectoryStore, run: RunRow, stop: asyncio.Event) -> PolicyVersion | None:
    """The trainer builds or loads the model first; without a version there is nothing to act with. None: stopped before."""
    while not stop.is_set():
        version = await asyncio.to_thread(store.newest_version, run.id)
        if version is not None:
            return version
        await asyncio.sleep(WAIT_S)
    return None


async def _sandboxes(environment: Environment, provider: Provider) -> str:
    if environment.has_sandbox_for:
        return f"{provider.name}:of each task"  # replaced at the end of each episode
    specs = [spec for spec in (environment.sandbox, *environment.sandboxes.values()) if spec is not None]
    return await digests(provider, specs)


async def digests(provider: Provider, specs: Iterable[SandboxSpec]) -> str:
    """What sandboxes of ``specs`` are made from, as a trajectory keeps it."""
    return f"{provider.name}:" + (", ".join([await provider.digest(spec) for spec in specs]) or "none")


def lineage_of(
    environment: Environment,
    model_dir: Path,
    chat: ChatFormat,
    engine: Engine,
    sampling: Sampling,
    sandbox: str,
    origin: Origin = Origin.SIMULATED,
) -> Lineage:
    """What the episodes of this process carry about where they come from."""
    return Lineage(
        model=str(model_dir),
        tokenizer_hash=chat.tokenizer_hash,
        template_hash=chat.template_hash,
        engine=engine.info.name,
        engine_version=engine.info.version,
        engine_dtype=engine.info.dtype,
        sampling=sampling,
        logprob_kind=engine.info.logprob_kind,
        environment=environment.name,
        environment_version=environment.version,
        sandbox=sandbox,
        origin=origin,
    )
