"""Whether what the policy is told about a tool is what the tool accepts."""

from __future__ import annotations

import json
from typing import Any

from agentrl.environment.base import Environment
from agentrl.environment.calls import tool_call
from agentrl.environment.tools import Tool, WrongCall
from agentrl.environment.validation.check import Check
from agentrl.tokens.tool_calls import parse


def round_trip(environment: Environment) -> Check:
    """Arguments made from each schema, written as a call, parsed and validated, come back as they were."""
    problems = [problem for tool in environment.tools.values() if (problem := _problem(tool))]
    detail = "; ".join(problems) or f"{len(environment.tools)} tools"
    return Check("schema round trip", not problems if environment.tools else None, detail if environment.tools else "no tools")


def _problem(tool: Tool) -> str | None:
    schema = tool.schema()
    if json.loads(json.dumps(schema, allow_nan=False)) != schema:
        return f"{tool.name}: its schema is no plain JSON"
    definitions = tool.parameters.get("$defs", {})
    required = tool.parameters.get("required", [])
    sent = {name: _example(tool.parameters["properties"][name], definitions) for name in required}
    (call,) = parse(tool_call(tool.name, **sent)).calls
    if call.arguments != sent:
        return f"{tool.name}: {sent} reads as {call.arguments or call.error}"
    try:
        once = tool.plain(tool.validate(sent))
        again = tool.plain(tool.validate(once))
    except WrongCall as error:
        return f"{tool.name}: {sent} fits its schema and is refused: {error}"
    return None if once == again else f"{tool.name}: {once} comes back as {again}"


def _example(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """A small value that fits ``schema``, as far as types, enums, bounds and required fields go."""
    if "$ref" in schema:
        return _example(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _example(schema[choice][0], definitions)
    for fixed in ("const", "default"):
        if fixed in schema:
            return schema[fixed]
    for several in ("enum", "examples"):
        if several in schema:
            return schema[several][0]
    kind = schema.get("type")
    if kind == "string":
        return "text".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 100)]
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "array":
        return [_example(schema.get("items", {}), definitions)] * max(1, schema.get("minItems", 1))
    if kind == "object":
        return {name: _example(schema["properties"][name], definitions) for name in schema.get("required", [])}
    return {"boolean": True, "null": None}.get(str(kind), "text")


def _number(schema: dict[str, Any]) -> Any:
    low = schema.get("minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else None)
    value = 1 if low is None else max(1, low)
    return value if high is None else min(value, high)
