"""From a function's typed parameters to a pydantic schema: the arguments of a tool, the options of an environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, NotRequired, Required, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import TypedDict

from agentrl.errors import UsageError


def arguments_adapter(
    where: str,
    function: Callable[..., Any],
    parameters: Sequence[inspect.Parameter],
    descriptions: Mapping[str, str] | None = None,
) -> TypeAdapter[Any]:
    """Validates a dict of arguments by ``parameters`` of ``function``; unknown names are refused.

    ``descriptions`` go to the schema, where a parameter's own ``Field(description=...)`` wins. `UsageError`, which names
    ``where``, for a parameter without a type, or with one that has no JSON form.
    """
    fields = _fields(where, function, parameters, descriptions or {})
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]
    setattr(arguments, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010 - a TypedDict declares no attributes
    try:
        return TypeAdapter(arguments)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise UsageError(f"{where}: a parameter's type has no JSON form: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What pydantic says is wrong, without its advice for pydantic's own users."""
    return str(error).partition(" Set `")[0].partition("\n")[0]


def problems(error: Any, most: int = 3) -> str:
    """What a pydantic ``ValidationError`` found, as one line."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in found[:most]]
    rest = len(found) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _fields(
    where: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter], descriptions: Mapping[str, str]
) -> dict[str, Any]:
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
        if (text := descriptions.get(parameter.name)) and not _is_described(type_):
            type_ = Annotated[type_, Field(description=text)]
        if parameter.default is parameter.empty:
            fields[parameter.name] = Required[type_]
        else:
            shown = Field(json_schema_extra={"default": parameter.default}) if _is_plain(parameter.default) else Field()
            fields[parameter.name] = NotRequired[Annotated[type_, shown]]
    return fields


def _is_described(type_: Any) -> bool:
    return any(getattr(note, "description", None) for note in getattr(type_, "__metadata__", ()))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
