"""Options of an environment: the typed parameters of its constructor, given by name as ``environment_options.NAME=VALUE``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentrl.environment.base import Environment
from agentrl.environment.signature import arguments_adapter, problems
from agentrl.errors import UsageError
from agentrl.types import Json


def checked_options(cls: type[Environment], name: str, given: Mapping[str, Json]) -> tuple[dict[str, Any], dict[str, Json]]:
    """Arguments for ``cls(**arguments)``, and the same as JSON; relative paths become absolute.

    ``name`` is what the user calls the environment. `UsageError` names an option that does not exist, lacks or does not fit.
    """
    parameters = _parameters(cls)
    for option in given:
        if option not in parameters:
            close = difflib.get_close_matches(option, list(parameters), n=1, cutoff=0.5)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise UsageError(f"environment {name!r} has no option {option!r}{hint}; options: {', '.join(parameters) or 'none'}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise UsageError(f"environment {name!r} needs environment_options.{missing[0]}=...")
    adapter = _adapter(cls, parameters)
    try:
        arguments = dict(adapter.validate_python(dict(given)))
    except ValidationError as error:
        raise UsageError(f"environment {name!r}, environment_options: {problems(error)}") from None
    arguments = {key: _absolute(value) for key, value in arguments.items()}
    return arguments, dict(adapter.dump_python(arguments, mode="json"))


def option_lines(cls: type[Environment]) -> list[str]:
    """``name: type = default`` of each option, for people to read."""
    return [str(parameter) for parameter in _parameters(cls).values()]


def _parameters(cls: type[Environment]) -> dict[str, inspect.Parameter]:
    if cls.__init__ is object.__init__:
        return {}
    found = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {p.name: p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _adapter(cls: type[Environment], parameters: Mapping[str, inspect.Parameter]) -> TypeAdapter[Any]:
    return arguments_adapter(f"{cls.__qualname__}.__init__", cls.__init__, list(parameters.values()))


def _absolute(value: Any) -> Any:
    # The processes of a run, and its resumption tomorrow, need not start in today's folder.
    return value.expanduser().absolute() if isinstance(value, Path) else value
