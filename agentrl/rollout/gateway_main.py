"""The gateway process: an engine with the run's newest weights behind a web server, until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import uvicorn

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row, model_folder
from agentrl.environment.registry import load
from agentrl.errors import UsageError
from agentrl.monitor.log import ProcessLog
from agentrl.monitor.serving import Server, listen
from agentrl.monitor.terminal import say
from agentrl.rollout.engines import open_engine, unless
from agentrl.rollout.gateway import Gateway
from agentrl.rollout.main import first_version, lineage_of
from agentrl.rollout.upkeep import Freshness, keep_leases, load_newest
from agentrl.store.contract import Change, RunRow, TrajectoryStore
from agentrl.store.patience import outlasting
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import OUTSIDE, Origin, Sampling

GRACE_S = 10
"""What requests that are under way get when the gateway stops."""


def run_gateway(store: TrajectoryStore, run: RunRow, *, host: str, port: int, idle_s: float, origin: Origin) -> None:
    """Serve outside agents until SIGINT or SIGTERM. `NotReadyError` when the address is taken.

    `UsageError` for an origin that the run does not train on.
    """
    if origin not in run.spec.origins:
        raise UsageError(
            f"Run {run.spec.name} trains on {' and '.join(run.spec.origins)} trajectories, not on {origin.value} ones: start a "
            "run that names them with trainer.origins."
        )
    config, folder = from_row(run.spec.config)
    asyncio.run(_serve(store, run, config, folder, host, port, idle_s, origin))


async def _serve(
    store: TrajectoryStore, run: RunRow, config: RunConfig, folder: Path, host: str, port: int, idle_s: float, origin: Origin
) -> None:
    log, stop = ProcessLog(folder / "logs", "gateway"), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listening = listen(host, port, "gateway")
    store = outlasting(
        store, config.store.outage_s, stop.is_set, lambda line: log.warning("waiting for the database", call=line)
    )
    say(f"  waiting for the first weights of run {run.spec.name}")
    if await first_version(store, run, stop) is None:
        return
    model_dir = model_folder(config, folder)
    chat = ChatFormat(model_dir, tool_format=config.model.chosen_tool_format)
    engine = await unless(stop, open_engine(config, run.spec.name, folder, model_dir, log))
    if engine is None:
        return
    await load_newest(store, run, engine)
    sampling = Sampling(temperature=config.engine.temperature)
    name = f"{socket.gethostname()}:{os.getpid()}:gateway"
    environment = load(config.environment, config.environment_options)
    lineage = lineage_of(environment, model_dir, chat, engine, sampling, OUTSIDE, origin)
    gateway = Gateway(
        store, run, name, engine, chat, sampling, lineage, config.rollout.concurrency, idle_s, log
    )  # fmt: skip
    try:
        await _until_stopped(gateway, Freshness(
            store, run, name, engine, log, poll_s=config.store.poll_seconds, refresh_every=config.staleness.refresh_every
        ), listening, stop)  # fmt: skip
    finally:
        await gateway.release()
        await engine.close()


async def _until_stopped(gateway: Gateway, freshness: Freshness, listening: socket.socket, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def woken(change: Change) -> None:
        if change == "policy":
            loop.call_soon_threadsafe(freshness.announced.set)

    server = Server(uvicorn.Config(gateway.app(), log_level="warning", lifespan="off", timeout_graceful_shutdown=GRACE_S))
    subscription = gateway.store.subscribe(gateway.run.id, woken)
    serving = asyncio.create_task(server.serve([listening]))
    leases = asyncio.create_task(keep_leases(gateway.store, gateway.run, gateway.name, gateway.held, gateway.lost))
    others = [
        asyncio.create_task(work)
        for work in (freshness.keep(gateway.starved, lambda loaded: None), gateway.sweep(), stop.wait())
    ]
    host, port = listening.getsockname()[:2]
    say(f"  gateway of run {gateway.run.spec.name} on http://{host}:{port}: POST /episodes opens an episode")
    try:
        done, _ = await asyncio.wait([serving, leases, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        gateway.cut_off()
        for task in others:
            task.cancel()
        await asyncio.gather(serving, *others, return_exceptions=True)
        leases.cancel()  # answers that were under way are stored under a lease that holds
        await asyncio.gather(leases, return_exceptions=True)
        await asyncio.to_thread(subscription.close)
    for task in done:
        task.result()
