"""The SGLang servers that a run starts on this machine: checked before the run, then processes like all others."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.config.run import RunConfig
from agentrl.config.stored import model_folder
from agentrl.engine.sglang.command import default_python, has_gpu, server_command
from agentrl.errors import NotReadyError
from agentrl.launch.processes import Child
from agentrl.model.config import ModelConfig
from agentrl.store.embedded import default_home


def engine_servers(config: RunConfig, folder: Path) -> list[Child]:
    """One child a server; none when the engine is local or its servers run already.

    `NotReadyError` when SGLang is missing or something else listens on a port.
    """
    settings = config.engine
    if settings.kind == "local" or settings.urls:
        return []
    python = Path(settings.sglang_python) if settings.sglang_python else default_python(default_home())
    model_dir = model_folder(config, folder)
    context = ModelConfig.read(model_dir).max_positions if config.model.path else config.model.max_context
    roles = [(f"sglang-{i}", url) for i, url in enumerate(settings.server_urls)]
    roles += [("sglang-evaluation", url) for url in settings.evaluation_server_urls]
    children = []
    for role, url in roles:
        port = urlsplit(url).port or 0
        command = server_command(
            python,
            model_dir,
            port=port,
            slots=settings.slots,
            max_context=context,
            gpu=has_gpu(),
            more=settings.sglang_args,
        )
        _require_free(port)
        children.append(Child(role, command.arguments, environment=command.environment, prints=True))
    return children


def engine_line(config: RunConfig) -> str:
    """For the plan: which engine, and where."""
    settings = config.engine
    if settings.kind == "local":
        where = "in the rollout process: no --engine sglang was given"
        return f"local, {where}; temperature {settings.temperature:g}, {settings.slots} slots"
    started = "running ones" if settings.urls else "started here"
    evaluations = "in their own process" if settings.evaluation == "local" else ", ".join(settings.evaluation_server_urls)
    return (
        f"SGLang at {', '.join(settings.server_urls)}, {started}; weights by {settings.transport}; "
        f"temperature {settings.temperature:g}; evaluations {evaluations}"
    )


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise NotReadyError(
                f"Port {port}, on which this run's SGLang server would listen, is taken ({error}): another run's server may be "
                "there. Choose other ports with engine.port=N, or attach to that server with engine.urls."
            ) from None
