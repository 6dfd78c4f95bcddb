"""Declaration of tools: schema from types, description from docstring, validation and coercion of what a model sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import Field

from agentrl.environment import Environment, tool
from agentrl.environment.tools import WrongCall
from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.environment import Episode


class Shop(Environment):
    @tool(side_effects=False)
    def buy(
        self,
        episode: Episode,
        item: str,
        amount: Annotated[int, Field(ge=1, description="How many.")] = 1,
        tags: list[str] | None = None,
        title: str = "none",
    ) -> str:
        """Buy an item.

        Costs money.
        """
        return f"{item} x {amount}"

    @tool(parallel=True)
    async def ship(self, speed: Literal["slow", "fast"]) -> None:
        """Ship everything."""

    def not_offered(self, item: str) -> str:
        return item


def test_schema_of_typed_method__has_types_defaults_and_required_names() -> None:
    schema = Shop.tools["buy"].schema()
    function = schema["function"]
    parameters = function["parameters"]
    assert schema["type"] == "function"
    assert function["name"] == "buy"
    assert function["description"] == "Buy an item.\n\nCosts money."
    assert parameters["required"] == ["item"]
    assert parameters["properties"]["item"] == {"type": "string"}
    assert parameters["properties"]["amount"] == {"type": "integer", "minimum": 1, "description": "How many.", "default": 1}
    assert parameters["properties"]["title"] == {"type": "string", "default": "none"}
    assert "episode" not in parameters["properties"]
    assert parameters["additionalProperties"] is False
    assert "title" not in parameters


class Documented(Environment):
    @tool
    def find(self, episode: Episode, query: str, limit: Annotated[int, Field(description="At most this many.")] = 3) -> str:
        """Search the archive.

        Case does not matter.

        Args:
            query: Words to look for,
                at least one.
            limit: Overridden by the annotation.

        Returns:
            A line a hit.
        """
        return query


def test_docstring__describes_the_tool_and_each_parameter() -> None:
    found = Documented.tools["find"]
    assert found.description == "Search the archive.\n\nCase does not matter.\n\nReturns: A line a hit."
    properties = found.parameters["properties"]
    assert properties["query"] == {"type": "string", "description": "Words to look for,\nat least one."}
    assert properties["limit"]["description"] == "At most this many."


def test_docstring_about_a_parameter_that_is_not_there__refused() -> None:
    with pytest.raises(UsageError, match=r"tool .*Bad.find: the docstring describes limits, which is no parameter"):

        class Bad(Environment):
            @tool
            def find(self, limit: int) -> str:
                """Search.

                Args:
                    limits: How many.
                """
                return ""


def test_tools_of_class__are_the_marked_methods_in_order() -> None:
    assert list(Shop.tools) == ["buy", "ship"]
    assert (Shop.tools["buy"].side_effects, Shop.tools["buy"].parallel) == (False, False)
    assert (Shop.tools["ship"].side_effects, Shop.tools["ship"].parallel) == (True, True)
    assert [declared["function"]["name"] for declared in Shop().tool_schemas()] == ["buy", "ship"]


def test_subclass_without_mark__withdraws_inherited_tool() -> None:
    class Quiet(Shop):
        def ship(self, speed: str) -> None:  # type: ignore[override]
            """No longer offered."""

    assert list(Quiet.tools) == ["buy"]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ({"item": "pen"}, {"item": "pen"}),
        ({"item": "pen", "amount": "3"}, {"item": "pen", "amount": 3}),
        ({"item": "pen", "amount": 3.0}, {"item": "pen", "amount": 3}),
        ({"item": "pen", "tags": ["a"]}, {"item": "pen", "tags": ["a"]}),
    ],
)
def test_arguments_that_fit__are_coerced(sent: dict[str, Any], received: dict[str, Any]) -> None:
    assert Shop.tools["buy"].validate(sent) == received


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({}, "item: Field required"),
        ({"item": 5}, "item: Input should be a valid string"),
        ({"item": "pen", "amount": "many"}, "amount: Input should be a valid integer"),
        ({"item": "pen", "amount": 0}, "amount: Input should be greater than or equal to 1"),
        ({"item": "pen", "colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"item": None, "amount": [], "tags": 1, "title": 2}, "and 1 more"),
    ],
)
def test_arguments_that_do_not_fit__say_which_and_why(sent: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongCall) as raised:
        Shop.tools["buy"].validate(sent)
    assert why in str(raised.value)


def test_tool_without_docstring__refused_at_definition() -> None:
    with pytest.raises(UsageError, match=r"Bare\.look has no docstring"):

        class Bare(Environment):
            @tool
            def look(self) -> str:
                return ""


def test_tool_with_untyped_parameter__refused_at_definition() -> None:
    with pytest.raises(UsageError, match=r"parameter 'where' needs a type"):

        class Untyped(Environment):
            @tool
            def look(self, where) -> str:  # type: ignore[no-untyped-def]
                """Look."""
                return ""


def test_tool_with_star_arguments__refused_at_definition() -> None:
    with pytest.raises(UsageError, match=r"parameter 'where' must be a plain named parameter"):

        class Starred(Environment):
            @tool
            def look(self, *where: str) -> str:
                """Look."""
                return ""


def test_tool_with_type_json_cannot_hold__refused_at_definition() -> None:
    with pytest.raises(UsageError, match="no JSON form"):

        class Opaque(Environment):
            @tool
            def look(self, where: Shop) -> str:
                """Look."""
                return ""


def test_environment_without_name__is_named_after_its_class() -> None:
    class MathWorld2D(Environment):
        pass

    class Named(Environment):
        name = "other"

    assert MathWorld2D.name == "math_world2_d"
    assert Named.name == "other"
    assert Shop.name == "shop"
