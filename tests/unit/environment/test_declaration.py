"""What a class says of itself is refused by name, before anything runs on it."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentrl.environment import Environment, Message, Task, TokenizerHints, tool
from agentrl.environment.declaration import check_declaration
from agentrl.environment.demonstrate import play
from agentrl.environment.registry import load
from agentrl.errors import EnvironmentFault, UsageError
from sandboxes.contract import SandboxSpec


def environment(**attributes: Any) -> Environment:
    return type("Mine", (Environment,), attributes)()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("version", 2),
        ("max_turns", "8"),
        ("max_turns", 0),
        ("max_turns", True),
        ("max_tokens", 0.5),
        ("max_result_chars", -1),
        ("tool_timeout_s", math.inf),
        ("grade_timeout_s", math.nan),
        ("max_seconds", 0),
        ("max_turn_seconds", "1"),
        ("grades_truncated", "yes"),
        ("sandbox", "python:3.12"),
        ("sandboxes", ["database"]),
        ("sandboxes", {"database": None}),
        ("sub_agents", [Environment]),
        ("tokenizer_hints", r"\d"),
        ("tokenizer_hints", TokenizerHints(r"\d", "scaffold")),  # type: ignore[arg-type]
        ("run_defaults", ["staleness.eta"]),
    ],
)
def test_attribute_of_another_kind__is_refused_by_name(attribute: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^Mine\.{attribute} is .*; it must be "):
        check_declaration(environment(**{attribute: value}))


def test_attributes_of_the_right_kinds__are_taken() -> None:
    check_declaration(environment())
    hints = TokenizerHints(r"\d", ("<a>",))
    check_declaration(environment(max_turn_seconds=2, sandboxes={"a": SandboxSpec()}, tokenizer_hints=hints, max_turns=1))


@pytest.mark.parametrize(
    ("attribute", "meant"),
    [
        ("max_turn", "max_turns"),
        ("max_token", "max_tokens"),
        ("tool_timeout", "tool_timeout_s"),
        ("strict_call", "strict_calls"),
    ],
)
def test_misspelt_attribute__is_refused_with_what_was_meant(attribute: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"^Mine\.{attribute} has no meaning; did you mean {meant}\?"):
        check_declaration(environment(**{attribute: 3}))


@pytest.mark.parametrize("attribute", ["versions", "names", "task", "max_files", "_max_turn", "sub_agents_of"])
def test_attribute_of_the_authors_own__is_taken(attribute: str) -> None:
    check_declaration(environment(**{attribute: 3}))


def test_loaded_environment_and_its_sub_agents__are_checked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentrl.environment import Environment\n"
        "class Inner(Environment):\n    max_turns = 0\n"
        "class Outer(Environment):\n    sub_agents = {'inner': Inner()}\n"
    )
    for name in ("Inner", "Outer"):
        with pytest.raises(UsageError, match=r"Inner\.max_turns is 0"):
            load(f"{tmp_path}/mine.py:{name}")


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
@pytest.mark.parametrize("marked_first", [True, False])
def test_tool_that_is_no_plain_method__is_refused(kind: Any, marked_first: bool) -> None:
    def look(where: str) -> str:
        """Look."""
        return where

    member = kind(tool(look)) if marked_first else tool(kind(look))
    with pytest.raises(UsageError, match=r"Mine\.look: a tool is a plain method with self"):
        environment(look=member)


def test_tool_without_self__is_refused() -> None:
    @tool
    def look() -> str:
        """Look."""
        return ""

    with pytest.raises(UsageError, match=r"Mine\.look: its first parameter must be self"):
        environment(look=look)


def test_episode_in_another_place__is_refused() -> None:
    def look(self: Any, where: str, episode: Any) -> str:
        """Look."""
        return where

    with pytest.raises(UsageError, match=r"Mine\.look: episode must come right after self"):
        environment(look=tool(look))


@pytest.mark.parametrize("method", ["tasks", "messages", "gold", "demonstrator"])
def test_async_method_that_nobody_awaits__is_refused(method: str) -> None:
    async def answer(self: Any, *arguments: Any) -> list[Any]:
        return []

    async def stream(self: Any, *arguments: Any) -> Any:
        yield 1

    for written in (answer, stream):
        with pytest.raises(UsageError, match=rf"Mine\.{method} is async; it must be a plain def"):
            check_declaration(environment(**{method: written}))


@pytest.mark.parametrize("name", ["stop", "step", "setup", "reward", "messages", "tools"])
def test_tool_named_as_a_method_of_the_library__is_refused(name: str) -> None:
    def end(self: Any) -> str:
        """End it."""
        return ""

    with pytest.raises(UsageError, match=rf"Mine\.{name}: the library calls"):
        environment(**{name: tool(end)})


def test_pydantics_advice_for_its_own_users__is_left_out() -> None:
    def look(self: Any, where: Random) -> str:
        """Look."""
        return ""

    with pytest.raises(UsageError) as refused:
        environment(look=tool(look))
    assert "random.Random" in str(refused.value)
    assert not any(word in str(refused.value) for word in ("\n", "pydantic.dev", "arbitrary_types_allowed"))


class Plain(Environment):
    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task("one", {}, split)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", 5)]  # type: ignore[arg-type]


async def test_message_whose_content_is_no_text__names_environment_task_and_place() -> None:
    environment = Plain()
    with pytest.raises(EnvironmentFault, match=r"'plain', task 'one', method 'messages' .*must be text, not 5 .*\.py:\d+"):
        await play(environment, environment.tasks("train", 0, 1)[0], lambda episode: "")


async def test_policy_that_says_no_text__is_a_fault_of_the_environment() -> None:
    mine = environment(messages=lambda self, task: [Message("user", "go")])
    with pytest.raises(EnvironmentFault, match="a policy says a text, not None"):
        await play(mine, Task("one", {}, "train"), lambda episode: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("misuse", [lambda episode: episode.sandbox.exec, lambda episode: episode.add_reward("1")])
async def test_misuse_of_the_episode__names_environment_task_method_and_line(misuse: Any) -> None:
    async def setup(self: Any, episode: Any) -> None:
        misuse(episode)

    mine = environment(messages=lambda self, task: [Message("user", "go")], setup=setup)
    with pytest.raises(
        EnvironmentFault, match=r"^environment 'mine', task 'one', method 'setup': .*test_declaration\.py:\d+\)$"
    ):
        await play(mine, Task("one", {}, "train"), lambda episode: "done")
