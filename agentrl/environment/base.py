"""The class people subclass to write an environment."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from agentrl.environment.boundary import named_faults
from agentrl.environment.code_places import defined_at
from agentrl.environment.episode import Done, Episode, Step
from agentrl.environment.step import calls_or_respond
from agentrl.environment.tools import Tool, declared_tools
from agentrl.errors import EnvironmentFault, UsageError
from agentrl.tokens.messages import Message
from agentrl.types import Json, Reward, Task
from sandboxes.contract import SandboxSpec
from sandboxes.lazy import LazySandbox

Policy = Callable[[Episode], str]
"""Says the assistant's next text from what happened so far."""


@dataclass(frozen=True, slots=True)
class TokenizerHints:
    """How a tokenizer built for this environment's small model should cut text, so that a turn is few tokens."""

    split: str
    """Regular expression whose matches are tokens of their own."""
    scaffold: tuple[str, ...]
    """Whole strings that become one token each."""


class Environment:
    """Tasks, tools and a reward. ``tasks``, ``messages`` and ``reward`` must be written; the rest has defaults.

    One object serves many episodes at the same time: keep what belongs to one episode in ``episode.state``.
    """

    name: ClassVar[str] = "environment"
    """Default: the class name in snake_case."""
    version: ClassVar[str] = "1"
    """Change it when rewards of old and new episodes must not be compared."""
    sandbox: SandboxSpec | None = None
    """What each episode, and its grading, gets a sandbox of; None: no sandbox. See `sandbox_for` for one of each task's own."""
    sandboxes: Mapping[str, SandboxSpec] = MappingProxyType({})
    """Further sandboxes of an episode: ``episode.sandboxes[name]``."""
    sub_agents: Mapping[str, Environment] = MappingProxyType({})
    """Agents that an episode may start with ``await episode.sub_agent(name, payload)``, each an environment with messages and
    tools of its own. It works in the sandboxes of the episode. Without a ``reward`` of its own it gets the ``verdict`` that the
    episode's ``reward`` sets for it, else that of its parent.
    """
    max_sub_agents: int = 16
    """Sub-agents that one episode may start."""
    max_turns: int = 8
    max_turn_tokens: int = 512
    """Tokens that the policy may sample in one turn."""
    max_tokens: int = 4096
    """Tokens of the whole trajectory, prompt and observations included."""
    max_seconds: float = 600.0
    """Wall clock of an episode, grading excluded. An episode that ran out of it is never graded: the machine was slow."""
    max_turn_seconds: float | None = None
    """Wall clock of a turn, from the request to the engine to the results of its calls; None: only ``max_seconds``. The engine
    is told to stop when it is over, calls end by their own limit; such an episode ends there and is never graded either."""
    tool_timeout_s: float = 30.0
    """Of one tool call. Waiting for a sandbox does not count, here and below."""
    grade_timeout_s: float = 60.0
    max_result_chars: int = 16_000
    """Longer results are cut in the middle before the policy sees them; the raw bytes are kept."""
    grades_truncated: bool = False
    """True: an episode that ran out of turns or tokens is graded like a finished one, so its credit does not bootstrap."""
    strict_calls: bool = False
    """True: a turn with a tool call must be that one call and nothing else."""
    run_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings that suit these tasks, by dotted name; presets yield to them, users overrule them."""
    tokenizer_hints: TokenizerHints | None = None
    tools: ClassVar[Mapping[str, Tool]] = MappingProxyType({})
    """Declared tools by name; filled from the ``@tool`` methods."""
    options: Mapping[str, Json] = MappingProxyType({})
    """Arguments of the constructor that a user gave by name, as JSON; filled by `agentrl.environment.registry.load`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        tools = declared_tools(cls)
        if taken := sorted(tools.keys() & vars(Environment).keys()):
            raise UsageError(
                f"tool {cls.__qualname__}.{taken[0]}: the library calls that method itself; name the tool otherwise"
            )
        cls.tools = MappingProxyType(tools)

    def tasks(self, split: str, seed: int, n: int) -> Iterable[Task]:
        """Tasks of ``split`` (``train`` or ``heldout``), the same ones for the same ``seed``, ids unique; ``n`` are taken."""
        raise NotImplementedError(f"{type(self).__qualname__} must define tasks(split, seed, n)")

    def messages(self, task: Task) -> list[Message]:
        """The conversation that the policy starts from."""
        raise NotImplementedError(f"{type(self).__qualname__} must define messages(task)")

    def sandbox_for(self, task: Task) -> SandboxSpec | None:
        """What the sandbox of this task is made of, when tasks differ in it, as by their image. Default: ``sandbox``."""
        return self.sandbox

    async def setup(self, episode: Episode) -> None:
        """Prepare ``episode.state`` and ``episode.sandbox`` before the first turn."""

    async def step(self, episode: Episode, text: str) -> Step:
        """Answer a turn of the policy. Override it for full control; by default calls are run and other text is for `respond`.

        It is not called for a turn that was cut by its budget. Return a `Step`; ``await super().step(episode, text)`` gives the
        default's. It may take ``max_seconds``. What it does outside the sandbox must bear repetition, or set
        ``episode.retryable = False`` first.
        """
        return await calls_or_respond(self, episode, text)

    async def stop(self, episode: Episode) -> bool:
        """Asked after each turn that did not end the episode; True ends it here, naturally."""
        return False

    async def respond(self, episode: Episode, text: str) -> str | Message | Done:
        """Answer a turn without a tool call; a str becomes a user message. By default such a turn ends the episode."""
        return Done()

    async def compact(self, episode: Episode) -> Sequence[Message] | None:
        """Asked after each turn that goes on: the messages to go on from instead of ``episode.messages``, or None to append.

        What is returned is the whole next prompt, the newest observation included where the policy shall read it. It opens a
        new context: what was sampled before is trained in the context in which it was sampled.
        """
        return None

    def wrong_call(self, why: str) -> str:
        """What the policy is told about a call that could not be executed."""
        return f"error: {why}"

    async def finish(self, episode: Episode) -> None:
        """The episode has ended and its sandbox still lives: copy what grading needs into ``episode.state``."""

    async def reward(self, episode: Episode, sandbox: LazySandbox) -> Reward | float | bool:
        """Score an ended episode. ``sandbox`` is clean and is not the one that the policy used: upload tests only here.

        ``await sandbox.renew()`` gives it back, so that what runs next in it shares nothing with what ran before.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must define reward(episode, sandbox)")

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        """A scripted policy for ``task``, to warm-start a model that can't act yet. Optional; see `can_demonstrate`."""
        raise UsageError(f"environment {self.name!r} has no demonstrator: it can't warm-start a model")

    @property
    def can_demonstrate(self) -> bool:
        return type(self).demonstrator is not Environment.demonstrator

    def gold(self, task: Task) -> Sequence[str]:
        """The turns of a solution that must be accepted: the assistant's text of each. `agentrl env validate` plays them."""
        raise UsageError(f"environment {self.name!r} has no gold solution: define gold(task)")

    @property
    def has_gold(self) -> bool:
        return type(self).gold is not Environment.gold

    @property
    def has_stop(self) -> bool:
        return type(self).stop is not Environment.stop

    @property
    def has_reward(self) -> bool:
        return type(self).reward is not Environment.reward

    @property
    def has_compact(self) -> bool:
        return type(self).compact is not Environment.compact

    @property
    def has_sandbox_for(self) -> bool:
        return type(self).sandbox_for is not Environment.sandbox_for

    @property
    def uses_sandboxes(self) -> bool:
        """Whether an episode may need any."""
        return self.sandbox is not None or bool(self.sandboxes) or self.has_sandbox_for

    @property
    def n_sandboxes(self) -> int:
        """How many an episode takes at the most."""
        return len(self.sandboxes) + (self.sandbox is not None or self.has_sandbox_for)

    @property
    def is_repeatable(self) -> bool:
        """Whether any episode may be run again after a failure that nobody saw: all tools say ``side_effects=False``."""
        own = not any(tool.side_effects for tool in self.tools.values())
        return own and all(child.is_repeatable for child in self.sub_agents.values())

    def all_agents(self) -> dict[str, Environment]:
        """This environment and all its sub-agents, by the name of the environment."""
        found = {self.name: self}
        for child in self.sub_agents.values():
            found |= child.all_agents()
        return found

    def tool_schemas(self) -> list[dict[str, Json]]:
        """Declarations of all tools, as chat templates take them."""
        return [declared.schema() for declared in self.tools.values()]


def is_storable(task: Task) -> bool:
    """JSON without NaN, without NUL and without lone surrogates: databases hold no others."""
    try:
        json.dumps([task.id, dict(task.payload)], allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return all("\0" not in text for text in _texts([task.id, task.payload]))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def checked_tasks(environment: Environment, split: str, seed: int, n: int) -> list[Task]:
    """Tasks of an environment; `EnvironmentFault` for none, bad or repeated ids, another split, or what can't be stored."""
    with named_faults(environment.name, f"{split} split", "tasks", UsageError):
        tasks = list(itertools.islice(environment.tasks(split, seed, n), n))
    where = f"environment {environment.name!r}, tasks({split!r}, seed={seed}, n={n}){defined_at(environment.tasks)}"
    if not tasks:
        raise EnvironmentFault(f"{where} returned no task")
    seen: set[str] = set()
    for index, task in enumerate(tasks):
        if not isinstance(task, Task) or not isinstance(task.id, str) or not task.id:
            raise EnvironmentFault(f"{where}: item {index} is not a Task with a non-empty id: {task!r:.200}")
        if task.split != split:
            raise EnvironmentFault(f"{where}: task {task.id!r} says split {task.split!r}")
        if not is_storable(task):
            raise EnvironmentFault(f"{where}: task {task.id!a:.200} can't be stored: its payload is a dict of JSON values")
        if task.id in seen:
            raise EnvironmentFault(f"{where}: id {task.id!r} appears twice")
        seen.add(task.id)
    return tasks
