"""``agentrl train``: one command from nothing to a trained policy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentrl.cli.session import require_run, store_session
from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.config.load import Resolved


def train(
    overrides: list[str] = typer.Argument(None, metavar="KEY=VALUE", help="Settings, e.g. trainer.steps=50."),
    env: str | None = typer.Option(None, "--env", help="Environment: a name, module:Class or file.py:Class."),
    preset: str | None = typer.Option(None, "--preset", help="sao_turn (default), sao, grpo, ...: `agentrl config presets`."),
    sync: bool = typer.Option(False, "--sync", help="Strictly synchronous: lag bound 0."),
    seed: int | None = typer.Option(None, "--seed", help="Seed of tasks, demonstrations, weights and sampling."),
    name: str | None = typer.Option(None, "--name", help="Name of the run. Default: environment and time."),
    model: str | None = typer.Option(None, "--model", help="Hugging Face model directory. Default: build a small model."),
    config: Path | None = typer.Option(None, "--config", help="TOML file with settings."),
    resume: str | None = typer.Option(None, "--resume", help="Continue this run ('latest' for the newest)."),
    engine: str | None = typer.Option(None, "--engine", help="local (default) or sglang."),
    sandbox: str | None = typer.Option(
        None, "--sandbox", help="docker, podman, bubblewrap or module:Class. Default: the first that works."
    ),
    unsafe_local_execution: bool = typer.Option(False, "--unsafe-local-execution", help="Run tool code without isolation."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the plan and check everything; start no run."),
) -> None:
    """Train a policy. Precedence of settings: flag > file > overlay > environment > preset > default.

    - agentrl train --env code_agent
    - agentrl train --env code_agent --preset grpo trainer.steps=50
    - agentrl train --resume latest
    """
    if resume is not None:
        given = {"--env": env, "--preset": preset, "--seed": seed, "--name": name, "--model": model, "--config": config,
                 "--engine": engine, "--sandbox": sandbox}  # fmt: skip
        switches = {"--sync": sync, "--unsafe-local-execution": unsafe_local_execution, "--dry-run": dry_run}
        _refuse_settings({**given, **{flag: value or None for flag, value in switches.items()}}, overrides or [])
        sys.exit(_resumed(resume))
    flags = {
        "seed": seed,
        "model.path": str(Path(model).absolute()) if model is not None else None,
        "engine.kind": engine,
        "sandbox.provider": sandbox,
        "sandbox.unsafe_local_execution": True if unsafe_local_execution else None,
        "staleness.lag": 0 if sync else None,
    }
    resolved = _resolved(env, preset, config, flags, overrides or [])
    from agentrl.launch.plan import make_plan, print_plan
    from agentrl.launch.run import create_run, draw_tasks, execute

    with store_session() as session:
        plan = make_plan(resolved, name, session.store, session.description)
        print_plan(plan)
        if dry_run:
            draw_tasks(plan.config)
            print("Everything is in place; --dry-run starts no run.")
            return
        run = create_run(plan, session.store)
        code = execute(run, session.store)
    sys.exit(code)


def _resolved(
    env: str | None, preset: str | None, config: Path | None, flags: Mapping[str, Any], overrides: list[str]
) -> Resolved:
    """The settings; an unknown name or option is refused before a database is started for it."""
    from agentrl.config.load import resolve
    from agentrl.environment.registry import load
    from agentrl.launch.defaults import run_defaults

    resolved = resolve(environment=env, preset=preset, file=config, flags=flags, overrides=overrides, defaults_of=run_defaults)
    return resolved.with_options(load(resolved.config.environment, resolved.config.environment_options).options)


def _refuse_settings(given: Mapping[str, Any], overrides: list[str]) -> None:
    clashes = [*(flag for flag, value in given.items() if value is not None), *overrides]
    if clashes:
        raise UsageError(f"A resumed run keeps its settings: leave out {', '.join(clashes)}.")


def _resumed(name: str) -> int:
    from agentrl.launch.resume import require_same_model
    from agentrl.launch.run import execute

    with store_session() as session:
        run = require_run(session.store, name)
        require_same_model(run, session.store)
        print(f"Resuming run {run.spec.name} at step {run.step} ({run.updates} policy updates)", flush=True)
        return execute(run, session.store)
