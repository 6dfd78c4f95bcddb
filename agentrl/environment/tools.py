"""Tools: methods of an environment that the policy may call.

Typed parameters become the JSON schema and validate what the policy sends; the docstring becomes the description.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, NotRequired, Required, TypeVar, get_type_hints, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from agentrl.errors import UsageError
from agentrl.types import Json

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__agentrl_tool__"
_MAX_ERRORS = 3


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
def tool(*, side_effects: bool = False, parallel: bool = False) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, side_effects: bool = False, parallel: bool = False) -> F | Callable[[F], F]:
    """Offer a method to the policy; ``@tool`` or ``@tool(...)``, sync or async, ``self`` then optionally ``episode`` first.

    ``side_effects``: a call changes something outside the episode's own sandbox and state, so the episode is never repeated.
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
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            shown = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems[:_MAX_ERRORS]]
            rest = len(problems) - len(shown)
            raise WrongCall("; ".join(shown) + (f"; and {rest} more" if rest else "")) from error


def declared_tools(cls: type) -> dict[str, Tool]:
    """Tools of a class by name, inherited ones included, in order of definition; `UsageError` for a bad declaration."""
    marked: dict[str, tuple[Callable[..., Any], _Mark]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            mark = getattr(member, _MARK, None)
            if mark is not None:
                marked[name] = (member, mark)
            else:
                marked.pop(name, None)
    return {name: _declare(cls, name, function, mark) for name, (function, mark) in marked.items()}


def _declare(cls: type, name: str, function: Callable[..., Any], mark: _Mark) -> Tool:
    where = f"tool {cls.__qualname__}.{name}"
    parameters = list(inspect.signature(function).parameters.values())[1:]
    takes_episode = bool(parameters) and parameters[0].name == "episode"
    if takes_episode:
        parameters = parameters[1:]
    description = inspect.cleandoc(function.__doc__ or "")
    if not description:
        raise UsageError(f"{where} has no docstring: it is the description that the policy reads")
    fields = _fields(where, function, parameters)
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]
    setattr(arguments, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010 - a TypedDict declares no attributes
    try:
        adapter = TypeAdapter(arguments)
        schema = adapter.json_schema(schema_generator=_NoTitles)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise UsageError(f"{where}: a parameter's type has no JSON form: {error}") from error
    schema.pop("title", None)
    return Tool(name, description, schema, takes_episode, mark.side_effects, mark.parallel, adapter)


def _fields(where: str, function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    annotations: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"{where}: parameter {parameter.name!r} must be a plain named parameter")
        if parameter.annotation is parameter.empty:
            raise UsageError(f"{where}: parameter {parameter.name!r} needs a type")
        annotations[parameter.name] = parameter.annotation
    try:
        # Only these annotations: `episode` and the result may name types that are imported for type checkers alone.
        scope = getattr(function, "__globals__", {})
        types = get_type_hints(SimpleNamespace(__annotations__=annotations), globalns=scope, include_extras=True)
    except NameError as error:
        raise UsageError(f"{where}: {error}; types of parameters must be importable at run time") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        type_ = types[parameter.name]
        if parameter.default is parameter.empty:
            fields[parameter.name] = Required[type_]
        else:
            shown = Field(json_schema_extra={"default": parameter.default}) if _is_plain(parameter.default) else Field()
            fields[parameter.name] = NotRequired[Annotated[type_, shown]]
    return fields


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
