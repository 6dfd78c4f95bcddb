"""``agentrl env``: environments to list, begin, look at, prove and try."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.errors import NotReadyError, UsageError
from agentrl.monitor.terminal import visible

if TYPE_CHECKING:
    from agentrl.environment.base import Environment
    from agentrl.environment.validation import Check
    from agentrl.tokens.chat_format import ChatFormat
    from sandboxes.contract import Provider

app = typer.Typer(help="List, begin, look at, prove and try environments.", no_args_is_help=True)


def _known_split(split: str) -> str:
    if split not in ("train", "heldout"):
        raise UsageError(f"--split is {split!r}; there are train and heldout")
    return split


NAME = typer.Argument(metavar="NAME", help="A name from `agentrl env list`, module:Class, path/to/file.py:Class or ./folder.")
SETTINGS = typer.Argument(None, metavar="environment_options.KEY=VALUE", help="Options of the environment.")
SPLIT = typer.Option("train", "--split", help="train or heldout.", callback=_known_split)
SEED = typer.Option(0, "--seed", help="Seed of the tasks.")
SANDBOX = typer.Option(None, "--sandbox", help="docker, podman, bubblewrap or module:Class. Default: the first that works.")
UNSAFE = typer.Option(False, "--unsafe-local-execution", help="Run tool code without isolation.")
JSON = typer.Option(False, "--json", help="One JSON object.")


@app.command("list")
def list_environments(as_json: bool = JSON) -> None:
    """Installed environments by name. Others are named as module:Class or path/to/file.py:Class."""
    from agentrl.environment.registry import installed

    if as_json:
        print(json.dumps(installed()))
        return
    table = Table("name", "class")
    for name, target in sorted(installed().items()):
        table.add_row(name, target)
    Console(width=None if Console().is_terminal else 120).print(table)


@app.command("init")
def init(
    name: str = typer.Argument(help="Name of the package and of the environment."),
    folder: Path = typer.Option(Path(), "--in", help="Folder to make it in."),
) -> None:
    """Write a package with a small environment that works, and a test of it."""
    from agentrl.environment.scaffold import write_package

    for path in write_package(name, folder):
        print(f"wrote {path}")
    package = folder / name
    shown = package if package.is_absolute() else f"./{package}"
    print(f"\nNext: agentrl env validate {shown} and agentrl env play {shown}; after pip install -e {shown} its name is {name}")


@app.command("show")
def show(name: str = NAME, settings: list[str] = SETTINGS, split: str = SPLIT, seed: int = SEED, as_json: bool = JSON) -> None:
    """What the policy gets: the prompt of a task and the tools' schemas; then budgets, sandbox and options."""
    from agentrl.cli.env_text import described

    environment = _load(name, settings)
    description = described(environment, split, seed)
    if as_json:
        print(json.dumps(description))
        return
    for subject, value in description.items():
        print(f"{subject}:")
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        print("\n".join(f"  {visible(line)}" for line in text.splitlines()))


@app.command("validate")
def validate(
    name: str = NAME,
    settings: list[str] = SETTINGS,
    n: int = typer.Option(8, "--tasks", min=1, help="Tasks of each split that are played."),
    repeats: int = typer.Option(3, "--repeats", min=1, help="How often a verdict is repeated."),
    compared: int = typer.Option(1000, "--compare", min=1, help="Tasks of each split that are compared for overlap."),
    model: Path | None = typer.Option(None, "--model", help="Folder of a model whose tokens gold's length is counted in."),
    seed: int = SEED,
    sandbox: str | None = SANDBOX,
    unsafe_local_execution: bool = UNSAFE,
    as_json: bool = JSON,
) -> None:
    """Prove an environment without a model: gold accepted, no-op rejected, grader stable, nothing leaked. Else exit code 1."""
    from agentrl.environment.blocked_loop import told_when_blocked
    from agentrl.environment.validation import validate as run_checks

    environment = _load(name, settings)
    chat = _chat(model)

    async def run() -> list[Check]:
        provider = await _provider(environment, sandbox, unsafe_local_execution)
        with told_when_blocked(_say):
            return await run_checks(environment, provider, n=n, repeats=repeats, compared=compared, seed=seed, chat=chat)

    checks = asyncio.run(run())
    if as_json:
        print(json.dumps({check.name: {"ok": check.ok, "detail": check.detail} for check in checks}))
    else:
        table = Table("check", "result", "detail")
        for check in checks:
            word = {True: "OK", False: "FAIL", None: "not made"}[check.ok]
            table.add_row(check.name, word, Text(visible(check.detail)))
        Console(width=None if Console().is_terminal else 160).print(table)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)


@app.command("play")
def play(
    name: str = NAME,
    settings: list[str] = SETTINGS,
    split: str = SPLIT,
    seed: int = SEED,
    index: int = typer.Option(0, "--task", min=0, help="Which of the split's tasks, from 0."),
    sandbox: str | None = SANDBOX,
    unsafe_local_execution: bool = UNSAFE,
) -> None:
    """Be the agent: a line is a turn, /TOOL key=value calls a tool, key=@FILE sends a file's text, /quit leaves."""
    from agentrl.cli.env_play import play_at_keyboard
    from agentrl.environment.blocked_loop import told_when_blocked

    environment = _load(name, settings)

    async def run() -> None:
        provider = await _provider(environment, sandbox, unsafe_local_execution)
        with told_when_blocked(_say):
            await play_at_keyboard(environment, provider, split, seed, index)

    from sandboxes.contract import SandboxError

    try:
        asyncio.run(run())
    except SandboxError as error:
        raise NotReadyError(str(error)) from None


def _load(name: str, settings: list[str] | None) -> Environment:
    from agentrl.config.load import environment_options
    from agentrl.environment.registry import load

    return load(name, environment_options(settings or []))


def _chat(model: Path | None) -> ChatFormat | None:
    if model is None:
        return None
    from agentrl.tokens.chat_format import ChatFormat

    return ChatFormat(model, follow=True)


async def _provider(environment: Environment, preference: str | None, unsafe_local: bool) -> Provider | None:
    from agentrl.environment.on_this_host import provider_for

    provider, reason = await provider_for(environment, preference, unsafe_local)
    if provider is not None:
        print(f"sandbox: {reason}", file=sys.stderr)
    return provider


def _say(line: str) -> None:
    print(f"agentrl: {line}", file=sys.stderr, flush=True)
