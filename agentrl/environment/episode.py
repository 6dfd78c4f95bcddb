"""What an environment sees of one episode: its task, sandbox and seed, a free namespace, and the turns so far."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from agentrl.errors import EnvironmentFault
from agentrl.tokens.call_values import ParsedTurn, Schemas
from agentrl.tokens.messages import Message
from agentrl.tokens.tool_calls import parse
from agentrl.types import Json, Reward, Task, Termination, ToolCall, ToolResult
from sandboxes.contract import Sandbox


@dataclass(frozen=True, slots=True)
class Done:
    """Returned by a tool or by ``respond``: the episode ends here. ``text`` is stored as the tool's result."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy and what the environment answered."""

    text: str
    """The assistant's text, without the stop token."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    messages: tuple[Message, ...] = ()
    """The observation that follows, as added to the conversation."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment made of a turn. ``done``: the episode ends here, naturally, and nobody reads ``messages``."""

    messages: tuple[Message, ...] = ()
    done: bool = False
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


class _NoSandbox:
    def __getattr__(self, name: str) -> NoReturn:
        raise EnvironmentFault(
            f"sandbox.{name} used without a sandbox: set `sandbox = SandboxSpec()` on the environment's class"
        )


NO_SANDBOX = cast(Sandbox, _NoSandbox())
"""Stands where an environment without a sandbox spec would find one; every use names the missing declaration."""


@dataclass(slots=True)
class Episode:
    """One run of one task. Environments keep their own things in ``state``; everything else is kept by the library."""

    task: Task
    sandbox: Sandbox = NO_SANDBOX
    seed: int = 0
    sandboxes: Mapping[str, Sandbox] = field(default_factory=dict)
    """Those of ``Environment.sandboxes`` by name; while ``reward`` runs they are clean ones, as its ``sandbox`` is."""
    state: SimpleNamespace = field(default_factory=SimpleNamespace)
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """The conversation as the policy reads it now, its own turns included."""
    context_tokens: int = 0
    """Tokens that the policy has read and written in the running context; 0 where no model plays."""
    max_context: int = 0
    """Tokens that one context can hold; 0 where no model plays."""
    ended: Termination | None = None
    retryable: bool = True
    """False once a tool not declared ``side_effects=False`` was called: such an episode is never run again."""
    sub_agents: list[Episode] = field(default_factory=list)
    """Those that it started itself, in the order of their starts."""
    verdict: Reward | float | bool | None = None
    """Of a sub-agent whose class defines no ``reward``: set it in the episode's ``reward``, and it counts for this one instead
    of the episode's."""
    failure: Exception | None = None
    """What broke a sub-agent. It breaks this episode too, whatever the environment makes of the exception."""
    start: Callable[[str, Mapping[str, Json]], Awaitable[Episode]] | None = None
    """What `sub_agent` calls; set by whoever plays the episode."""
    read: Callable[[str, Schemas], ParsedTurn] = parse
    """Finds reasoning and tool calls in a turn's text, in the format that the run's chat template writes."""
    _turn_reward: float | None = None
    _turn_units: tuple[int, ...] | None = None

    @property
    def n_turns(self) -> int:
        return len(self.turns)

    @property
    def last_observation(self) -> str:
        """Text of the newest message from the environment, empty before the first answer."""
        messages = self.turns[-1].messages if self.turns else ()
        return messages[-1].content if messages else ""

    async def sub_agent(self, name: str, payload: Mapping[str, Json]) -> Episode:
        """Run the sub-agent ``name`` of ``Environment.sub_agents`` on a task with this payload; returns its ended episode.

        Only an async tool (or ``step``) can await it; its time counts against no tool's limit. Raises `ToolError` after
        ``max_sub_agents`` of them. A sub-agent that a budget ended returns, too: look at ``ended``.
        """
        if self.start is None or self.ended is not None:
            raise EnvironmentFault(f"task {self.task.id!r}: a sub-agent can only be started in a turn, by a tool or by step()")
        return await self.start(name, payload)

    def add_reward(self, value: float) -> None:
        """Credit the running turn with ``value`` (finite), on top of what ``reward`` gives the whole episode."""
        number: Any = value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise EnvironmentFault(f"add_reward on task {self.task.id!r} got {value!r}: a finite number is needed")
        self._turn_reward = (self._turn_reward or 0.0) + float(number)

    def mark_units(self, *starts: int) -> None:
        """Say where units of credit begin in the running turn, when they are not turns.

        ``starts``: positions in the turn's text as ``step`` gets it; the token that holds the character begins a unit.
        ``mark_units()``: none does, the turn belongs to the unit of the turn before. ``mark_units(0, n)``: the turn is two
        units. The last call of a turn counts.
        """
        numbers: Sequence[Any] = starts
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
            raise EnvironmentFault(
                f"mark_units on task {self.task.id!r} got {starts!r:.200}: positions are whole numbers from 0"
            )
        self._turn_units = tuple(sorted(set(starts)))

    def take_turn_units(self, text: str) -> tuple[int, ...] | None:
        """What was marked in the turn with this text, None when nothing was."""
        starts, self._turn_units = self._turn_units, None
        if starts and starts[-1] >= max(len(text), 1):
            raise EnvironmentFault(
                f"mark_units on task {self.task.id!r} got position {starts[-1]}, but the turn's text has {len(text)} characters"
            )
        return starts

    def take_turn_reward(self) -> float | None:
        """What was added since the last call, None when nothing was."""
        value, self._turn_reward = self._turn_reward, None
        return value
