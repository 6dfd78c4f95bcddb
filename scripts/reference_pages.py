"""Writes docs/reference/settings.md and docs/reference/commands.md from the code: `python scripts/reference_pages.py`."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel

from agentrl.cli.main import app
from agentrl.config.run import RunConfig

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_SETTINGS = """# Settings

Made from the code by `scripts/reference_pages.py`. A setting is given as `KEY=VALUE` after a command, or in a TOML file
(`--config`) with a table for each section. What counts, from the strongest: flag or `KEY=VALUE`, file, schedule, overlay of the
small model, environment, preset, default. `agentrl config show` prints each value of a run with its origin. Values are written
as in TOML; `none` leaves a setting out.
"""
_COMMANDS = """# Commands

Made from the code by `scripts/reference_pages.py`; `--help` after any command prints the same. `RUN` is a run's name or
`latest`. Results, and the progress of a run, go to stdout; notes and errors to stderr. Colours are for terminals only, and
`NO_COLOR=1` switches them off there. `agentrl --install-completion` lets the shell complete commands and options.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the run or a check failed |
| 2 | wrong usage or settings; nothing was started |
| 3 | something outside is missing or does not answer: database, sandbox, model files, disk |
| 130 | interrupted |

The processes of a run, `agentrl trainer` and `agentrl rollout`, also end with 4 (another trainer holds the run) and 5 (the run
failed in a way that a restart can't help).

`agentrl -v COMMAND` shows the traceback of an error.
"""


def settings_page() -> str:
    """One table a section."""
    lines = [_SETTINGS]
    for prefix, model in _sections(RunConfig, ""):
        lines += [f"## {prefix.removesuffix('.') or 'The run'}", "", _sentence(model.__doc__), ""]
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        said = _docstrings(model)
        for name, field in model.model_fields.items():
            if not _models(field.annotation):
                default = "required" if field.is_required() else f"`{_value(field.get_default(call_default_factory=True))}`"
                meaning = " ".join(filter(None, [said[name], _choices(field.annotation)]))
                lines.append(f"| `{prefix}{name}` | {default} | {_cell(meaning)} |")
        lines.append("")
    return "\n".join(lines)


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield prefix, model
    for name, field in model.model_fields.items():
        for section in _models(field.annotation):
            yield from _sections(section, f"{prefix}{name}.")


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field; each has one."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    said = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            said[field.target.id] = _sentence(ast.literal_eval(below.value))
    return said


def _choices(annotation: Any) -> str:
    """Of a setting that takes nothing but these."""
    kinds = [
        a
        for a in (get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,))
        if a is not NoneType
    ]
    if any(get_origin(kind) is not Literal for kind in kinds):
        return ""
    return f"One of {', '.join(f'`{value}`' for kind in kinds for value in get_args(kind))}."


def _value(value: Any) -> str:
    return "none" if value is None else str(value) if isinstance(value, str) else json.dumps(value)


def commands_page() -> str:
    """One section a command."""
    command = typer.main.get_command(app)
    return "\n".join([_COMMANDS, *_commands(command, "agentrl")]).rstrip() + "\n"


def _commands(command: Any, path: str) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        if hasattr(below, "commands"):
            yield from _commands(below, f"{path} {name}")
        else:
            yield from _command(below, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([path, *(_placed(a) for a in arguments), *(["[OPTIONS]"] if options else [])])
    yield f"## {path}\n\n    {usage}\n"
    yield f"{inspect.cleandoc(command.help)}\n"
    if command.params:
        yield "| name | meaning | default |\n|---|---|---|"
    for p in [*arguments, *options]:
        name = _name(p) if p in arguments else ", ".join(f"`{opt}`" for opt in [*p.opts, *p.secondary_opts])
        default = (
            "required" if p.required else "" if p.default is None or p.default is False or p.nargs < 0 else f"`{p.default}`"
        )
        yield f"| {f'`{name}`' if p in arguments else name} | {_cell(p.help or '')} | {default} |"
    yield ""


def _placed(argument: Any) -> str:
    name = _name(argument) + ("..." if argument.nargs < 0 else "")
    return name if argument.required else f"[{name}]"


def _name(argument: Any) -> str:
    return argument.metavar or argument.name.upper()


def _sentence(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {"settings.md": settings_page, "commands.md": commands_page}


if __name__ == "__main__":
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page(), encoding="utf-8")
