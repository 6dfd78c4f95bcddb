"""What a reward worker grades is what the rollout worker saw: an episode survives its way as bytes, or is refused by name."""

from __future__ import annotations

import enum
import json
import math
import zlib
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.environment.episode import NO_SANDBOX, Episode, Turn
from agentrl.environment.evidence import pack, unpack
from agentrl.errors import EnvironmentFault
from agentrl.tokens.messages import Message
from agentrl.types import Task, Termination, ToolCall, ToolResult

TASK = Task("t/1", {"n": 1})
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), ANY_TEXT, st.binary(max_size=10))
LEAVES = st.one_of(KEYS, st.floats(allow_nan=False))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(ANY_TEXT, inner, max_size=4), st.sets(KEYS, max_size=4), st.frozensets(KEYS, max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip


def carried(state: dict[str, Any]) -> dict[str, Any]:
    episode = Episode(TASK, state=SimpleNamespace(**state), ended=Termination.TERMINATED)
    return vars(unpack(pack("env", episode), TASK, 0, Termination.TERMINATED).state)


def exactly(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(exactly, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(exactly(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (math.isnan(a) and math.isnan(b)))
    return bool(a == b)


@given(VALUES)
def test_graded_the_same__any_plain_value_comes_back_exactly(value: Any) -> None:
    assert exactly(carried({"value": value})["value"], value)


@pytest.mark.parametrize(
    "value",
    [math.inf, -math.inf, math.nan, -0.0, 10**400, b"\xff\x00", {"!": "bytes", "v": "x"}, {1: {"!": 2}}, {(): []}, "\ud800\x00",
     True, {True: 1, "True": 2}],
)  # fmt: skip
def test_graded_the_same__odd_values(value: Any) -> None:
    assert exactly(carried({"value": value})["value"], value)


def test_graded_the_same__every_field_of_an_episode_but_its_sandboxes() -> None:
    turn = Turn(
        "call \ud800\x1b[31m",
        (ToolCall("f", {"x": [1.5, None, "\x00"]}), ToolCall("g", None, "unreadable")),
        (ToolResult("f", "out", True, 0.25, b"\xfe\x00"), ToolResult("g", "", raw=None)),
        (Message("tool", "out", name="f"), Message("user", "go on")),
    )
    messages = [Message("system", "s"), Message("assistant", "a", (ToolCall("f", {"k": 1}),)), Message("tool", "r", name="f")]
    state = SimpleNamespace(code="x", seen={"a", "b"}, pairs=[(1, b"2")], nothing=None)
    episode = Episode(
        TASK, seed=7, state=state, turns=[turn, Turn("done")], messages=messages, context_tokens=12, max_context=99,
        ended=Termination.TRUNCATED_TURNS,
    )  # fmt: skip
    found = unpack(pack("env", episode), TASK, 7, Termination.TRUNCATED_TURNS)
    assert found == episode
    assert found.sandbox is NO_SANDBOX
    unasked = {"sandboxes", "retryable", "sub_agents", "verdict", "failure", "start", "read", "_turn_reward", "_turn_units"}
    asked = {"task", "sandbox", "seed", "state", "turns", "messages", "context_tokens", "max_context", "ended"}
    assert {f.name for f in fields(Episode)} == unasked | asked, "a new field: does reward() look at it?"


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "named"),
    [(object(), "a builtins.object"), (np.float32(1), "a numpy.float32"), (Colour.RED, "Colour"), ([{1: Colour}], "a enum"),
     (Task("x", {}), "a agentrl.types.Task"), (bytearray(b"x"), "a builtins.bytearray"),
     pytest.param(10**5000, "digits", id="long")],
)  # fmt: skip
def test_nothing_is_guessed__what_has_no_exact_form_is_refused_by_name(value: Any, named: str) -> None:
    episode = Episode(TASK, state=SimpleNamespace(fine=1, odd=value), ended=Termination.TERMINATED)
    with pytest.raises(EnvironmentFault, match=r"environment 'env', task 't/1': episode\.state\.odd") as raised:
        pack("env", episode)
    assert named in str(raised.value)


def test_nothing_is_guessed__a_state_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EnvironmentFault, match=r"episode\.state\.x"):
        pack("env", Episode(TASK, state=SimpleNamespace(x=endless), ended=Termination.TERMINATED))


def test_sub_agents__are_graded_where_they_ran() -> None:
    episode = Episode(TASK, sub_agents=[Episode(TASK)], ended=Termination.TERMINATED)
    with pytest.raises(EnvironmentFault, match=r"sub-agents.*reward\.workers=0"):
        pack("env", episode)


def test_bytes__are_compressed_json() -> None:
    body = json.loads(zlib.decompress(pack("env", Episode(TASK, state=SimpleNamespace(a=1), ended=Termination.TERMINATED))))
    assert body["state"] == {"a": 1}
