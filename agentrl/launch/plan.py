"""What a run is going to be, resolved and checked before any work starts."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentrl.config.layout import LayoutSettings, ModelSizes
from agentrl.config.load import Resolved
from agentrl.config.run import RunConfig
from agentrl.environment.base import Environment
from agentrl.errors import NotReadyError, UsageError
from agentrl.store.contract import TrajectoryStore
from sandboxes.choose import choose
from sandboxes.contract import SandboxError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LINE = 118
"""Width to which the plan is wrapped."""


@dataclass(frozen=True)
class Plan:
    """A run that can start: its name, folder, settings and what the machine offers for it."""

    name: str
    folder: Path
    resolved: Resolved
    lines: Mapping[str, str]
    """What is printed: subject -> decision and reason."""

    @property
    def config(self) -> RunConfig:
        return self.resolved.config


def runs_folder() -> Path:
    """``$AGENTRL_RUNS`` or ./runs."""
    return Path(os.environ.get("AGENTRL_RUNS", "runs")).absolute()


def new_name(environment: str) -> str:
    """Environment and start time in UTC, to the second."""
    base = re.sub(r"[^A-Za-z0-9._-]", "_", environment.rsplit(":", 1)[-1])[:60].lstrip("._-") or "run"
    return f"{base}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def make_plan(resolved: Resolved, name: str | None, store: TrajectoryStore, store_description: str) -> Plan:
    """Check environment, model, sandbox and name. `UsageError` or `NotReadyError`; nothing was created."""
    from agentrl.environment.registry import load

    config = resolved.config
    environment = load(config.environment)
    name = new_name(config.environment) if name is None else name
    if not _NAME.fullmatch(name) or name == "latest":
        raise UsageError(
            f"{name!r:.120} can't name a run: use up to 100 letters, digits, '.', '_' and '-', a letter or digit first; "
            "'latest' means the newest run."
        )
    folder = runs_folder() / name
    if store.find_run(name) is not None or folder.exists():
        raise UsageError(f"A run named '{name}' exists already. Continue it with: agentrl train --resume {name}")
    model = _model_line(config, environment)
    _check_critic(config)
    reason = _sandbox(config)
    lines = {
        "run": f"{name} (seed {config.seed}), files in {folder}",
        "environment": f"{config.environment} version {environment.version}",
        "store": store_description,
        "sandbox": f"{reason}; {config.sandbox.pool_size} warm",
        "model": model,
        "engine": f"{config.engine.kind}, in the rollout process: no SGLang server is configured; "
        f"temperature {config.engine.temperature:g}, {config.engine.slots} slots",
        "algorithm": _algorithm_line(config),
        "staleness": _staleness_line(config),
        "trainer": _trainer_line(config),
        "checkpoints": _checkpoint_line(config),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }
    return Plan(name, folder, resolved, lines)


def print_plan(plan: Plan) -> None:
    """The plan, then what was not chosen by the user and why."""
    width = max(map(len, plan.lines))
    for subject, text in plan.lines.items():
        for number, line in enumerate(textwrap.wrap(text, LINE - width, break_long_words=False, break_on_hyphens=False)):
            print(f"  {subject if number == 0 else '':<{width}}  {line}")
    by_origin: dict[str, list[str]] = {}
    for key, origin in plan.resolved.origins.items():
        by_origin.setdefault(origin, []).append(f"{key}={_value(plan.config, key)}")
    for origin, settings in by_origin.items():
        print(f"  {origin}:\n    {', '.join(settings)}")
    print("  everything else is a default: `agentrl config show` lists all settings", flush=True)


def _value(config: RunConfig, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = None if value is None else getattr(value, part)
    return f"{value:g}" if isinstance(value, float) else value


def _model_line(config: RunConfig, environment: Environment) -> str:
    if config.model.path is None:
        if not environment.can_demonstrate:
            raise UsageError(
                f"Environment {environment.name} has no demonstrations to warm-start a small model with: give it a "
                "`demonstrator`, or name a model with --model."
            )
        m = config.model
        return (
            f"a small Llama built here ({m.layers} layers, width {m.hidden}), warm-started on "
            f"{config.warm_start.demonstrations} demonstrations: no --model was given"
        )
    from agentrl.model.model_dir import open_model_dir

    opened = open_model_dir(Path(config.model.path)).config
    sizes = ModelSizes(opened.n_layers, opened.n_heads, opened.n_kv_heads, opened.intermediate_size)
    if misfits := config.trainer.layout.misfits(sizes):
        raise UsageError("; ".join(misfits))
    return f"{config.model.path}, no warm start"


def _check_critic(config: RunConfig) -> None:
    path = config.model.critic_path
    if path is None:
        return
    if config.algorithm.critic is None:
        raise UsageError(f"model.critic_path {path}: preset {config.preset} has no critic; leave it out")
    from agentrl.model.model_dir import weight_files

    if not Path(path).is_dir():
        raise UsageError(f"model.critic_path {path}: no such directory; leave it out to start from the policy's weights")
    weight_files(Path(path))


def _sandbox(config: RunConfig) -> str:
    preference = None if config.sandbox.provider == "auto" else config.sandbox.provider
    try:
        return asyncio.run(choose(preference, config.sandbox.unsafe_local_execution))[1]
    except SandboxError as error:
        raise NotReadyError(str(error)) from None


def _algorithm_line(config: RunConfig) -> str:
    a = config.algorithm
    parts = [f"preset {config.preset}: {a.advantage}", f"{a.loss} with ratio bounds ({a.ratio_low:g}, {a.ratio_high:g})"]
    if a.critic:
        parts.append(f"critic with {a.critic.updates_per_batch} updates a batch, {a.critic.warmup_batches} warm-up batches")
    if a.group_size > 1:
        parts.append(f"groups of {a.group_size}")
    return ", ".join(parts)


def _staleness_line(config: RunConfig) -> str:
    bound = config.staleness.bound
    if bound is None:
        return f"unbounded lag; at most {config.rollout.concurrency * config.rollout.workers} episodes run at once"
    if bound == 0:
        return "strictly synchronous: nothing is generated while the trainer works on its batch"
    return (
        f"lag of at most {bound} policy updates, "
        f"at most {(bound + 1) * config.trainer.batch} episodes between start and training"
    )


def _trainer_line(config: RunConfig) -> str:
    t = config.trainer
    rates = f"learning rate {t.learning_rate:g} to {t.learning_rate * t.final_learning_rate:g}"
    return f"megatron-core on {_device()}, {_layout(t.layout)}, {t.steps} steps of {t.batch} trajectories, {rates}"


def _layout(layout: LayoutSettings) -> str:
    return f"{layout.ranks} processes ({layout})" if layout.ranks > 1 else str(layout)


def _checkpoint_line(config: RunConfig) -> str:
    every = config.trainer.checkpoint_every
    if every is None:
        return "as often as keeps saving under 5 % of the run, written while training goes on; the first one is timed"
    return f"every {every} steps: a crash repeats at most that many"


def _device() -> str:
    # Not by torch: importing it takes longer than everything else that the plan does.
    return "GPU (NCCL)" if Path("/dev/nvidiactl").exists() else "CPU (gloo)"
