"""The engine of a process that acts, as the run's settings say."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from agentrl.config.run import RunConfig
from agentrl.engine.contract import Engine
from agentrl.engine.local import LocalEngine
from agentrl.engine.sglang.engine import SGLangEngine
from agentrl.engine.sglang.loading import locks_folder
from agentrl.monitor.log import ProcessLog
from agentrl.monitor.terminal import say

T = TypeVar("T")


async def open_engine(
    config: RunConfig, run: str, folder: Path, model_dir: Path, log: ProcessLog, *, evaluate: bool = False
) -> Engine:
    """An engine without weights; waits for the first SGLang server where there are some."""
    settings = config.engine
    urls = settings.evaluation_server_urls if evaluate else settings.server_urls
    if not urls:
        return LocalEngine(model_dir, slots=settings.slots)
    log.info("waiting for SGLang", servers=urls)

    def tell(line: str) -> None:
        log.warning("engine", what=line)
        say(f"  {line}")

    return await SGLangEngine.connect(
        urls,
        model_dir,
        run=run,
        locks=locks_folder(folder),
        route="disk" if settings.transport == "disk" else "tensor",
        shared=not evaluate,
        request_s=settings.request_s,
        tell=tell,
    )


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result, or None when ``stop`` comes first."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None
