"""The reward process: builds environment, sandbox pool and worker from the run's row, and grades until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row
from agentrl.environment.blocked_loop import told_when_blocked
from agentrl.environment.registry import load
from agentrl.monitor.log import ProcessLog
from agentrl.monitor.worker_process import run_worker
from agentrl.reward.worker import RewardWorker
from agentrl.store.contract import RunRow, TrajectoryStore
from agentrl.store.patience import outlasting
from sandboxes.choose import choose
from sandboxes.pool import Pool


def run_reward(store: TrajectoryStore, run: RunRow, *, worker: str) -> int:
    """Until told to stop; the exit code, see `run_worker`."""
    config, folder = from_row(run.spec.config)
    log = ProcessLog(folder / "logs", f"reward-{worker}")
    return run_worker(_serve(store, run, config, folder, f"reward-{worker}", log), log)


async def _serve(store: TrajectoryStore, run: RunRow, config: RunConfig, folder: Path, role: str, log: ProcessLog) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = outlasting(
        store, config.store.outage_s, stop.is_set, lambda line: log.warning("waiting for the database", call=line)
    )
    environment = load(config.environment, config.environment_options)
    provider, reason = await choose(
        None if config.sandbox.provider == "auto" else config.sandbox.provider, config.sandbox.unsafe_local_execution
    )
    pool = Pool(provider, config.sandbox.pool_size)
    name = f"{socket.gethostname()}:{os.getpid()}:{role}"
    log.info("reward worker starts", worker=name, sandbox=reason)
    settings = config.reward
    worker = RewardWorker(
        store, run, name, environment, pool, log, settings.concurrency, settings.lease_s, settings.retry_s,
        poll_s=config.store.poll_seconds,
    )  # fmt: skip
    try:
        with told_when_blocked(lambda line: log.warning("event loop blocked", why=line)):
            await worker.serve(stop)
    finally:
        await pool.close()
        log.cpu("reward worker ends", jobs=dict(worker.graded), **pool.metrics())
