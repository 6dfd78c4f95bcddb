"""The command that starts an SGLang server on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import NotReadyError

SERVE = Path(__file__).parent / "process" / "serve.py"
EXTRA_CONTEXT = 8
"""The server keeps a few positions of its context for itself; with more than the model's, requests may use all of those."""
ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
    "--disable-overlap-schedule",
    "--sleep-on-idle",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """Program with arguments, and what is added to the environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def server_command(
    python: Path, model_dir: Path, *, port: int, slots: int, max_context: int, gpu: bool, more: Sequence[str] = ()
) -> ServerCommand:
    """A server of ``model_dir`` on 127.0.0.1 for requests in token ids of up to ``max_context`` tokens, ``slots`` at a time.

    ``more`` goes to SGLang unchanged and wins over what is set here. `NotReadyError` when the interpreter is missing.
    """
    if not python.is_file():
        raise NotReadyError(
            f"There is no SGLang at {python}: install it with scripts/install-sglang.sh, name another interpreter with "
            "engine.sglang_python=PATH, or attach to running servers with engine.urls=[...]."
        )
    arguments = [
        *(str(python), str(SERVE), "--model-path", str(model_dir), "--host", "127.0.0.1", "--port", str(port)),
        *("--context-length", str(max_context + EXTRA_CONTEXT), "--max-running-requests", str(slots)),
        *("--skip-tokenizer-init", "--skip-server-warmup", "--enable-metrics", "--log-level", "warning"),
    ]
    if not gpu:
        tokens = slots * (max_context + EXTRA_CONTEXT)
        arguments += [*ON_CPU, "--mem-fraction-static", "0.1", "--max-total-tokens", str(tokens)]
    environment = {
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        # Otherwise a paused server does not answer its health check.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "HF_HUB_OFFLINE": "1",
    }
    return ServerCommand((*arguments, *more), environment)


def default_python(home: Path) -> Path:
    """Where scripts/install-sglang.sh puts the interpreter."""
    return home / "sglang" / "bin" / "python"


def has_gpu() -> bool:
    """Not by torch: importing it takes longer than everything else that is done before a run."""
    return os.path.exists("/dev/nvidiactl")
