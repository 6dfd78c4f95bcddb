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
from importlib.util import find_spec
from pathlib import Path

from agentrl.config.algorithm import SENSIBLE_GROUPS
from agentrl.config.layout import LayoutSettings, ModelSizes
from agentrl.config.load import Resolved
from agentrl.config.options import unread_options
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig
from agentrl.environment.base import Environment, checked_tasks
from agentrl.environment.boxes import check_room, distinct_specs
from agentrl.errors import NotReadyError, UsageError
from agentrl.launch.disk import free_space, runs_folder
from agentrl.launch.engine_servers import engine_line, engine_servers
from agentrl.launch.freshness import refresh_line, staleness_line
from agentrl.store.contract import TrajectoryStore
from agentrl.store.run_names import check_run_name
from agentrl.types import ToolFormat
from sandboxes.choose import choose
from sandboxes.contract import SandboxError

LINE = 118
"""Width to which the plan is wrapped."""
TRIED = 8
"""Sandboxes that are made before a run: where each task has one of its own, the rest are made when it is their turn."""


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


def new_name(environment: str) -> str:
    """Environment and start time in UTC, to the second."""
    base = re.sub(r"[^A-Za-z0-9._-]", "_", environment.rsplit(":", 1)[-1])[:60].lstrip("._-") or "run"
    return f"{base}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def make_plan(resolved: Resolved, name: str | None, store: TrajectoryStore, store_description: str) -> Plan:
    """Check environment, model, sandbox and name. `UsageError` or `NotReadyError`; nothing was created."""
    from agentrl.environment.registry import load

    config = resolved.config
    environment = load(config.environment, config.environment_options)
    name = new_name(config.environment) if name is None else name
    check_run_name(name)
    folder = runs_folder() / name
    if store.find_run(name) is not None or folder.exists():
        raise UsageError(f"A run named '{name}' exists already. Continue it with: agentrl train --resume {name}")
    model = _model_line(config, environment)
    chat = chat_lines(config, environment)
    _check_critic(config)
    _check_kernels(config.trainer.layout)
    if config.rollout.resume_partial and not environment.is_repeatable:
        raise UsageError(
            f"rollout.resume_partial does an episode's calls again, but environment {environment.name} has tools whose calls "
            "may not be repeated: leave it out, or declare them with @tool(side_effects=False) where that is true."
        )
    if config.reward.workers and environment.sub_agents:
        raise UsageError(
            f"Environment {environment.name} starts sub-agents, whose verdicts are given where the episode ran: leave out "
            f"reward.workers={config.reward.workers}."
        )
    check_room(environment, config.sandbox.pool_size)
    reason = _sandbox(config, environment)
    engine_servers(config, folder)
    lines = {
        "run": f"{name} (seed {config.seed}), files in {folder}",
        "environment": f"{config.environment} version {environment.version}",
        "store": store_description,
        "sandbox": f"{reason}; {config.sandbox.pool_size} warm",
        "model": model,
        **chat,
        "engine": engine_line(config),
        "algorithm": _algorithm_line(resolved),
        "schedule": _schedule_line(config),
        "staleness": staleness_line(config, single_turn=environment.max_turns == 1),
        "trainer": _trainer_line(config),
        "checkpoints": _checkpoint_line(config),
        "disk": _disk_line(folder),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }
    if refresh := refresh_line(config, store):
        lines["refresh"] = refresh
    if n := config.reward.workers:
        lines["grading"] = (
            f"{n} reward worker{'s' * (n > 1)}, {config.reward.concurrency} episodes at once each; rollout goes on meanwhile"
        )
    if not config.rollout.workers:
        lines["rollout"] = "no worker here (rollout.workers=0): outside agents act through a gateway"
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
        value = value.get(part) if isinstance(value, Mapping) else None if value is None else getattr(value, part)
    return f"{value:g}" if isinstance(value, float) else value


def _model_line(config: RunConfig, environment: Environment) -> str:
    if config.model.path is None:
        if not environment.can_demonstrate:
            raise UsageError(
                f"Environment {environment.name} has no demonstrations to warm-start a small model with: give it a "
                "`demonstrator`, or name a model with --model."
            )
        m = config.model
        cut = ""
        if environment.max_tokens > m.max_context:
            cut = f"; episodes end there, before the environment's {environment.max_tokens} tokens (model.max_context)"
        return (
            f"a small Llama built here ({m.layers} layers, width {m.hidden}, context of {m.max_context} tokens{cut}), "
            f"warm-started on at most {config.warm_start.demonstrations} demonstrations: no --model was given"
        )
    from agentrl.model.model_dir import open_model_dir

    opened = open_model_dir(Path(config.model.path)).config
    sizes = ModelSizes(opened.n_layers, opened.n_heads, opened.n_kv_heads, opened.mlp_width, opened.experts is not None)
    if misfits := config.trainer.layout.misfits(sizes):
        raise UsageError("; ".join(misfits))
    return f"{config.model.path}, no warm start"


def chat_lines(config: RunConfig, environment: Environment) -> dict[str, str]:
    """How calls are read and what becomes of earlier turns; a conversation that the template can't carry is refused."""
    settings = config.model
    if settings.path is None:
        if settings.chosen_tool_format not in (None, ToolFormat.HERMES):
            raise UsageError(
                f"A model that is built here writes tool calls as hermes: model.tool_format={settings.tool_format} needs a "
                "--model that writes them so."
            )
        return {"tool calls": "hermes, as the built model's chat template writes them"}
    from agentrl.tokens.chat_format import ChatFormat

    follows = settings.history == "template"
    chat = ChatFormat(Path(settings.path), tool_format=settings.chosen_tool_format, follow=follows)
    task = checked_tasks(environment, "train", config.seed, 1)[0]
    chat.rehearse(environment.messages(task), environment.tool_schemas())
    history = "earlier turns stay as sampled"
    if dropped := chat.drops_reasoning_after():
        does = f"the template drops earlier reasoning before a {' or '.join(dropped)} message"
        kept = "a new context opens there" if follows else "here it stays (model.history=template follows the template)"
        history = f"{does}; {kept}"
    elif follows:
        history = "as the template writes it; where it rewrites earlier turns a new context opens"
    if chat.writes_the_date:
        history += "; the template writes today's date, so prompts differ from day to day"
    return {"tool calls": f"{chat.tool_format.value}: {chat.tool_format_reason}", "history": history}


def _disk_line(folder: Path) -> str:
    try:
        return str(free_space(folder))
    except NotReadyError as error:
        raise NotReadyError(f"{error} AGENTRL_RUNS names another place.") from None


def _check_critic(config: RunConfig) -> None:
    path = config.model.critic_path
    if path is None:
        return
    if config.algorithm.critic is None:
        raise UsageError(f"model.critic_path {path}: preset {config.preset} has no critic; leave it out")
    from agentrl.model.config import ModelConfig
    from agentrl.model.critic_dir import critic_files

    critic_files(Path(path), None if config.model.path is None else ModelConfig.read(Path(config.model.path)))


def _check_kernels(layout: LayoutSettings) -> None:
    if layout.kernels == "torch":
        return
    lacking = "the package transformer_engine is not installed" if find_spec("transformer_engine") is None else ""
    if not _has_gpu():
        lacking = "; ".join(filter(None, [lacking, "there is no NVIDIA GPU here"]))
    if lacking:
        raise NotReadyError(
            f"trainer.layout.kernels=transformer_engine: {lacking}. Install `transformer-engine[pytorch]` on a GPU machine, or "
            "leave the setting out: layers of plain torch do the same."
        )


def _sandbox(config: RunConfig, environment: Environment) -> str:
    try:
        return asyncio.run(_tried(config, environment))
    except ValueError as error:
        raise UsageError(f"sandbox.provider: {error}") from None
    except SandboxError as error:
        raise NotReadyError(str(error)) from None


async def _tried(config: RunConfig, environment: Environment) -> str:
    """Which provider was chosen and why; it has made, once, each sandbox that the environment asks for, of the first tasks."""
    preference = None if config.sandbox.provider == "auto" else config.sandbox.provider
    provider, reason = await choose(preference, config.sandbox.unsafe_local_execution)
    splits = ("train", config.evaluation.split)
    tasks = [task for split in splits for task in checked_tasks(environment, split, config.seed, TRIED)]
    for spec in distinct_specs(environment, tasks)[:TRIED]:
        await provider.destroy(await provider.create(spec))
    return reason


def _algorithm_line(resolved: Resolved) -> str:
    config = resolved.config
    a = config.algorithm
    parts = [f"preset {config.preset} ({PRESETS[config.preset].source}): {a.advantage}", _loss(resolved)]
    if a.critic:
        parts.append(f"critic with {a.critic.updates_per_batch} updates a batch, {a.critic.warmup_batches} warm-up batches")
        if a.critic.warmup_batches >= config.trainer.steps:
            parts[-1] += f" (note: {config.trainer.steps} steps are all warm-up, so the policy is never updated)"
    if a.group_size > 1:
        low, high = SENSIBLE_GROUPS
        outside = (
            "" if low <= a.group_size <= high else f" (note: {low} to {high} is sensible; smaller is noisy, larger is dear)"
        )
        if spare := config.rollout.group_redundancy:
            outside += f", the first of {a.group_size + spare} episodes"
        parts.append(f"groups of {a.group_size}{outside}")
    if a.needs_reference:
        parts.append(f"{a.kl.estimator} KL to the first policy in the {a.kl.place}, coefficient {a.kl.coefficient:g}")
    if a.passes > 1:
        parts.append(f"{a.passes} passes over each batch")
    return ", ".join(parts)


def _loss(resolved: Resolved) -> str:
    """The loss and, where it has ratio bounds, who chose them."""
    a = resolved.config.algorithm
    if "ratio_low" in unread_options(a.options()):
        return a.loss
    origins = {resolved.origins.get(f"algorithm.{bound}", "default") for bound in ("ratio_low", "ratio_high")}
    chosen_by = " and ".join(sorted(origin.partition(":")[0] for origin in origins))
    unused = "" if a.ratio_can_move else " (note: in one pass the ratio to the proximal weights is 1, so nothing is clipped)"
    return f"{a.loss} with ratio bounds ({a.ratio_low:g}, {a.ratio_high:g}) of {chosen_by}{unused}"


def _schedule_line(config: RunConfig) -> str:
    pace, group = config.pace, config.algorithm.group_size
    late = pace.may_be_late
    says = {
        "synchronous": f"rounds of {pace.batch_max}; an update starts when all are ready",
        "drop_last": f"rounds of {pace.batch_max}; an update starts when all but {late} are ready; those count in the next",
        "pipelined": f"rounds of {pace.batch_max}; {pace.part or 0} or more that are ready are trained on while the others run",
        "group_async": f"groups of {group} are trained when all members are ready, oldest first, while others run",
        "async": "trajectories are trained as they get ready, oldest first, while others run",
    }[pace.schedule]
    if config.trainer.schedule is not None:
        return f"{pace.schedule}: {says}"
    groups = f"groups of {group}" if group > 1 else "no groups"
    follows = "the lag bound is 0" if pace.schedule == "synchronous" else f"a lag is allowed and there are {groups}"
    return f"{pace.schedule}, since {follows}: {says}"


def _trainer_line(config: RunConfig) -> str:
    t = config.trainer
    rates = f"learning rate {t.learning_rate:g} to {t.learning_rate * t.final_learning_rate:g}"
    least = config.pace.batch_min
    size = str(t.batch) if least == t.batch else f"{least} to {t.batch}"
    return f"megatron-core on {_device()}, {_layout(t.layout)}, {t.steps} steps of {size} trajectories, {rates}"


def _layout(layout: LayoutSettings) -> str:
    return f"{layout.ranks} processes ({layout})" if layout.ranks > 1 else str(layout)


def _checkpoint_line(config: RunConfig) -> str:
    every, keep = config.trainer.checkpoint_every, config.trainer.keep_checkpoints
    kept = f"the newest {keep} are kept" if keep > 1 else "the newest is kept"
    if every is None:
        return f"as often as keeps saving under 5 % of the run, written while training goes on; the first one is timed; {kept}"
    return f"every {every} steps: a crash repeats at most that many; {kept}"


def _device() -> str:
    return "GPU (NCCL)" if _has_gpu() else "CPU (gloo)"


def _has_gpu() -> bool:
    # Not by torch: importing it takes longer than everything else that the plan does.
    return Path("/dev/nvidiactl").exists()
