"""The warm start: a small model, built here and fine-tuned on an environment's demonstrations, for RL to improve.

The result is a Hugging Face model directory in the cache, named by the content hash of everything it depends on: library
version, environment source, sizes, settings and seed. The next run with the same hash copies it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import torch

from agentrl import __version__
from agentrl.config.run import RunConfig
from agentrl.environment.base import Environment
from agentrl.environment.demonstrate import Demonstration, Entries, collect
from agentrl.environment.registry import source_hash
from agentrl.errors import RunFailed, UsageError
from agentrl.model.model_dir import open_model_dir
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.model.weight_files import WEIGHTS, write_weights
from agentrl.monitor.log import ProcessLog
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.messages import Message
from agentrl.trainer.console import Console
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.supervised import fit
from sandboxes.choose import choose
from sandboxes.pool import Pool

CONCURRENCY = 8
CLIP_GRAD = 1.0
TELL_S = 10.0
STOPPED = "stopped in the warm start; nothing was written"


class WarmStartStopped(RunFailed):
    """The run was stopped before it had a model; nothing was written."""


def cache_folder() -> Path:
    """``$AGENTRL_CACHE`` or ~/.cache/agentrl."""
    return Path(os.environ.get("AGENTRL_CACHE", Path.home() / ".cache" / "agentrl"))


def warm_started_model(config: RunConfig, environment: Environment, console: Console, log: ProcessLog, stop: Event) -> Path:
    """The model directory for ``config``, from the cache or made now. `UsageError` when the environment can't demonstrate."""
    if not environment.can_demonstrate:
        raise UsageError(
            f"Environment {environment.name} has no demonstrations to warm-start a small model with: name a model with --model."
        )
    target = cache_folder() / "warm_start" / _key(config, environment)
    if target.exists():
        console.say(f"warm start: from the cache ({target})")
        return target
    began = time.monotonic()
    try:
        demonstrations = asyncio.run(_collect(config, environment, _progress(config, console, stop)))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the others were cancelled for it
    rewards = [d.reward.value for d in demonstrations if d.reward]
    success = sum(bool(d.reward and d.reward.success) for d in demonstrations) / len(demonstrations)
    console.say(
        f"warm start: {len(demonstrations)} demonstrations in {time.monotonic() - began:.0f} s, "
        f"success {success:.2f}, mean reward {sum(rewards) / max(1, len(rewards)):.2f}"
    )
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _train(config, environment, demonstrations, partial, console, stop)
    except BaseException:
        shutil.rmtree(partial)
        raise
    try:
        partial.rename(target)
    except OSError:  # another process made the same model in the meantime
        shutil.rmtree(partial)
    log.info("warm start", seconds=round(time.monotonic() - began, 1), folder=str(target))
    return target


def _progress(config: RunConfig, console: Console, stop: Event) -> Callable[[int], None]:
    told = time.monotonic()

    def progress(done: int) -> None:
        nonlocal told
        if stop.is_set():
            raise WarmStartStopped(STOPPED)
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            console.say(f"warm start: {done}/{config.warm_start.demonstrations} demonstrations")

    return progress


async def _collect(config: RunConfig, environment: Environment, on_progress: Callable[[int], None]) -> list[Demonstration]:
    sandbox = config.sandbox
    provider, _ = await choose(None if sandbox.provider == "auto" else sandbox.provider, sandbox.unsafe_local_execution)
    pool = Pool(provider, min(max(CONCURRENCY, environment.n_sandboxes), sandbox.pool_size))
    try:
        n = config.warm_start.demonstrations
        return await collect(environment, config.seed, n, pool, CONCURRENCY, on_progress)
    finally:
        await pool.close()


def _train(
    config: RunConfig,
    environment: Environment,
    demonstrations: Sequence[Demonstration],
    folder: Path,
    console: Console,
    stop: Event,
) -> None:
    m, settings = config.model, config.warm_start
    hints = environment.tokenizer_hints
    plan = TokenizerPlan(scaffold=hints.scaffold, isolate=hints.split) if hints else TokenizerPlan()
    build_tokenizer(_texts(demonstrations), plan, folder)
    build_tiny_model(
        folder,
        seed=config.seed,
        d=m.hidden,
        layers=m.layers,
        heads=m.heads,
        kv=m.kv_heads,
        ff=m.ffn,
        max_positions=m.max_context,
    )
    chat = ChatFormat(folder)
    rows = [row for d in demonstrations for row in demonstration_rows(chat, d, m.max_context)]
    opened = open_model_dir(folder)
    model = TrainedModel(
        opened.config.raw,
        "policy",
        opened.tensors(),
        OptimizerSettings(beta2=0.95, weight_decay=0.01, clip_grad=CLIP_GRAD),
        max_tokens=config.trainer.micro_batch_tokens,
    )
    parameters = sum(p.numel() for p in model.module.parameters())
    console.say(f"warm start: {parameters / 1e6:.2f} M parameters, vocabulary {opened.config.vocab_size}")

    def progress(step: int, loss: float) -> None:
        if stop.is_set():
            raise WarmStartStopped(STOPPED)
        if step % 100 == 0 or step == settings.steps:
            console.say(f"warm start: step {step}/{settings.steps}, loss {loss:.3f}")

    fit(
        model,
        rows,
        steps=settings.steps,
        batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        seed=config.seed,
        on_progress=progress,
    )
    (folder / WEIGHTS).unlink()
    write_weights(model.export(), folder)


def demonstration_rows(chat: ChatFormat, demonstration: Demonstration, limit: int) -> list[Row]:
    """Tokens of a demonstration as a rollout would have stored them, a row a context; assistant tokens are trained."""
    own = [_context_row(chat, entries, demonstration.environment, limit) for entries in demonstration.contexts]
    return own + [row for child in demonstration.sub_agents for row in demonstration_rows(chat, child, limit)]


def _context_row(chat: ChatFormat, entries: Entries, environment: Environment, limit: int) -> Row:
    history: list[Message] = []
    pending: list[Message] = []
    ids: list[int] = []
    positions: list[int] = []
    for entry in entries:
        if isinstance(entry, Message):
            pending.append(entry)
            continue
        if ids:
            ids += chat.observation(history, pending, ids[-1])
        else:
            ids += chat.prompt(pending, environment.tool_schemas())
        history += pending
        pending = []
        action = chat.encode_action(entry)
        positions += range(len(ids), len(ids) + len(action))
        ids += action
        history.append(Message("assistant", entry))
    ids = ids[:limit]
    kept = [p for p in positions if p < len(ids)]
    return Row(torch.tensor(ids), torch.tensor(kept, dtype=torch.int64))


def _texts(demonstrations: Sequence[Demonstration]) -> list[str]:
    own = [entry.content if isinstance(entry, Message) else entry for d in demonstrations for entry in d.entries]
    return own + [text for d in demonstrations for text in _texts(d.sub_agents)]


def _key(config: RunConfig, environment: Environment) -> str:
    parts = {
        "library": __version__,
        "environment": source_hash(environment),
        "model": config.model.model_dump(),
        "warm_start": config.warm_start.model_dump(),
        "seed": config.seed,
        "micro_batch_tokens": config.trainer.micro_batch_tokens,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
