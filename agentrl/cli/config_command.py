"""``agentrl config``: the settings of a run, each with its origin."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from agentrl.config.load import flatten, resolve
from agentrl.config.presets import PRESETS

app = typer.Typer(help="Show settings and where each value comes from.", no_args_is_help=True)
_JSON = typer.Option(False, "--json", help="One JSON object.")


@app.command("show")
def show(
    overrides: list[str] = typer.Argument(None, metavar="KEY=VALUE", help="Settings as for train."),
    env: str | None = typer.Option(None, "--env", help="Environment. Default: that of the file, else code_agent."),
    preset: str | None = typer.Option(None, "--preset", help="Algorithm preset."),
    config: Path | None = typer.Option(None, "--config", help="TOML file."),
    as_json: bool = _JSON,
) -> None:
    """Every setting of such a run. Precedence: flag > file > overlay > environment > preset > default."""
    from agentrl.launch.defaults import run_defaults

    named = config is not None or any(item.startswith("environment=") for item in overrides or [])
    environment = env or (None if named else "code_agent")
    resolved = resolve(
        environment=environment, preset=preset, file=config, flags={}, overrides=overrides or [], defaults_of=run_defaults
    )
    settings = dict(flatten(resolved.config.model_dump(mode="json")))
    if as_json:
        print(json.dumps({key: {"value": v, "origin": resolved.origins.get(key, "default")} for key, v in settings.items()}))
        return
    table = Table("setting", "value", "origin")
    for key, value in settings.items():
        table.add_row(key, str(value), resolved.origins.get(key, "default"))
    Console(width=None if Console().is_terminal else 160).print(table)


@app.command("presets")
def presets(as_json: bool = _JSON) -> None:
    """Every preset: where it comes from and the settings it gives a real model."""
    if as_json:
        print(json.dumps({name: {"source": preset.source, "settings": preset.values} for name, preset in PRESETS.items()}))
        return
    table = Table("preset", "source", "settings", show_lines=True)
    for name, preset in PRESETS.items():
        settings = ", ".join(f"{key.removeprefix('algorithm.')}={value}" for key, value in preset.values.items())
        table.add_row(name, preset.source, settings)
    Console(width=None if Console().is_terminal else 160).print(table)
