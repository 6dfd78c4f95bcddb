"""Tools: methods of an environment that the policy may call.

Typed parameters become the JSON schema and validate what the policy sends; the docstring becomes the description, and what its
``Args:`` section says of a parameter (or ``Annotated[int, Field(description=...)]``) the description of that parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import docstring_parser
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from agentrl.environment.signature import arguments_adapter, first_line, problems
from agentrl.errors import UsageError
from agentrl.types import Json

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__agentrl_tool__"


class ToolError(Exception):
    """Raised by a tool to tell the policy that its call failed; the message is the observation."""


class WrongCall(Exception):
    """Arguments that don't fit a tool's parameters; the message says why."""


@dataclass(frozen=True, slots=True)
class _Mark:
    side_effects: bool
    parallel: bool


class _NoTitles(GenerateJsonSchema):
    """Titles only repeat the names, and every character of a schema is paid for in prompt tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, side_effects: bool = True, parallel: bool = False) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, side_effects: bool = True, parallel: bool = False) -> F | Callable[[F], F]:
    """Offer a method to the policy; ``@tool`` or ``@tool(...)``, sync or async, ``self`` then optionally ``episode`` first.

    ``side_effects=False`` declares that a call changes nothing outside the episode's own sandboxes and state, so that an
    episode which failed for infrastructure may be run again. Without it no episode that called the tool is ever repeated.
    ``parallel``: calls of one turn may run at the same time when all tools called in it allow that.
    It returns text, bytes, None, anything JSON can hold, or `Done` to end the episode.
    """

    def mark(method: F) -> F:
        setattr(method, _MARK, _Mark(side_effects, parallel))
        return method

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool: what the policy is told, and how its arguments are checked."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON schema of the arguments."""
    takes_episode: bool
    side_effects: bool
    parallel: bool
    _arguments: TypeAdapter[Any]

    def schema(self) -> dict[str, Json]:
        """The declaration in the form that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def validate(self, arguments: Mapping[str, Json]) -> dict[str, Any]:
        """Arguments checked and coerced to the declared types; `WrongCall` otherwise."""
        try:
            return dict(self._arguments.validate_python(dict(arguments)))
        except ValidationError as error:
            raise WrongCall(problems(error)) from error

    def plain(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Validated arguments as JSON again."""
        return dict(self._arguments.dump_python(dict(arguments), mode="json"))


def declared_tools(cls: type) -> dict[str, Tool]:
    """Tools of a class by name, inherited ones included, in order of definition; `UsageError` for a bad declaration."""
    marked: dict[str, tuple[Callable[..., Any], _Mark]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            mark = getattr(member, _MARK, None)
            if isinstance(member, (staticmethod, classmethod)) and (mark or hasattr(member.__func__, _MARK)):
                raise UsageError(
                    f"tool {cls.__qualname__}.{name}: a tool is a plain method with self, not a {type(member).__name__}"
                )
            if mark is not None:
                marked[name] = (member, mark)
            else:
                marked.pop(name, None)
    return {name: _declare(cls, name, function, mark) for name, (function, mark) in marked.items()}


def _declare(cls: type, name: str, function: Callable[..., Any], mark: _Mark) -> Tool:
    where = f"tool {cls.__qualname__}.{name}"
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise UsageError(f"{where}: its first parameter must be self")
    del parameters[0]
    takes_episode = bool(parameters) and parameters[0].name == "episode"
    if takes_episode:
        parameters = parameters[1:]
    if any(parameter.name == "episode" for parameter in parameters):
        raise UsageError(f"{where}: episode must come right after self")
    description, of_parameters = _documentation(where, function)
    if unknown := of_parameters.keys() - {parameter.name for parameter in parameters} - {"episode"}:
        raise UsageError(f"{where}: the docstring describes {', '.join(sorted(unknown))}, which is no parameter")
    adapter = arguments_adapter(where, function, parameters, of_parameters)
    try:
        schema = adapter.json_schema(schema_generator=_NoTitles)
    except PydanticUserError as error:
        raise UsageError(f"{where}: a parameter's type has no JSON form: {first_line(error)}") from error
    schema.pop("title", None)
    return Tool(name, description, schema, takes_episode, mark.side_effects, mark.parallel, adapter)


def _documentation(where: str, function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description of a tool and, by name, of its parameters."""
    text = inspect.cleandoc(function.__doc__ or "")
    if not text:
        raise UsageError(f"{where} has no docstring: it is the description that the policy reads")
    parsed = docstring_parser.parse(text)
    if not parsed.params:
        return text, {}
    returned = parsed.returns.description if parsed.returns else None
    parts = [parsed.short_description, parsed.long_description, returned and f"Returns: {returned}"]
    return "\n\n".join(part for part in parts if part), {p.arg_name: p.description or "" for p in parsed.params}
