"""The agent at the keyboard: the same turns, sandboxes and grading that a model gets."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from agentrl.environment.base import Environment, checked_tasks
from agentrl.environment.boundary import in_daemon_thread
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.calls import tool_call
from agentrl.environment.episode import Episode
from agentrl.environment.grading import grade, is_gradable
from agentrl.environment.sub_agents import offer, own_verdict
from agentrl.environment.tools import Tool
from agentrl.environment.turn import begin, take_turn
from agentrl.errors import UsageError
from agentrl.monitor.terminal import visible
from agentrl.tokens.messages import Message
from agentrl.types import Json
from sandboxes.contract import Provider
from sandboxes.pool import Pool


class Left(Exception):
    """The player left in the middle of a sub-agent."""


class NotATurn(Exception):
    """A line that can't be sent; the message says why."""


async def play_at_keyboard(environment: Environment, provider: Provider | None, split: str, seed: int, index: int) -> None:
    """Play one task on standard input and output, and print the verdict."""
    tasks = checked_tasks(environment, split, seed, index + 1)
    if index >= len(tasks):
        raise UsageError(f"The split {split} has {len(tasks)} tasks; --task counts from 0.")
    pool = Pool(provider, max(2, environment.n_sandboxes)) if provider is not None else None
    try:
        queue = queue_for(pool)
        async with boxes_of(environment, tasks[index], queue) as boxes:
            episode, messages = await begin(environment, tasks[index], seed=seed, sandbox=boxes.main, sandboxes=boxes.others)
            offer(environment, episode, _SamePlayer())
            print(f"task {visible(episode.task.id)}; tools: {', '.join(environment.tools) or 'none'}; /quit leaves")
            _show(messages)
            if not await _played(environment, episode):
                print("left; nothing was graded")
                return
        assert episode.ended is not None, "the turns have ended"
        if not is_gradable(environment, episode.ended):
            print(f"{episode.ended.value}; such an end is not graded")
            return
        async with boxes_of(environment, tasks[index], queue) as boxes:
            reward = await grade(environment, episode, boxes.main, boxes.others)
        detail = f", {visible(json.dumps(dict(reward.detail)))}" if reward.detail else ""
        print(f"{episode.ended.value}; reward {reward.value:g}, success {reward.success}{detail}")
    finally:
        if pool is not None:
            await pool.close()


class _SamePlayer:
    """Who plays the episode plays its sub-agents, too."""

    def __init__(self) -> None:
        self._started = 0

    def number(self) -> int:
        self._started += 1
        return self._started

    async def play(self, number: int, environment: Environment, episode: Episode) -> None:
        offer(environment, episode, _SamePlayer())
        print(f"sub-agent {environment.name} begins; tools: {', '.join(environment.tools) or 'none'}")
        _show(episode.messages)
        if not await _turns(environment, episode):
            raise Left
        assert episode.ended is not None, "the turns have ended"
        print(f"sub-agent {environment.name} ended: {episode.ended.value}")
        await own_verdict(environment, episode)


async def _played(environment: Environment, episode: Episode) -> bool:
    try:
        return await _turns(environment, episode)
    except Left:
        return False


async def _turns(environment: Environment, episode: Episode) -> bool:
    """Until the episode has ended; False when the player leaves."""
    while episode.ended is None:
        print(f"turn {episode.n_turns + 1} of {environment.max_turns}> ", end="", flush=True)
        line = await in_daemon_thread(sys.stdin.readline)
        if not line or line.strip() == "/quit":
            return False
        try:
            text = turn_text(line.rstrip("\n"), environment.tools)
        except NotATurn as error:
            print(f"not sent: {error}")
            continue
        outcome = await take_turn(environment, episode, text, truncated=False)
        _show(outcome.messages)
        if outcome.reward is not None:
            print(f"[reward of this turn] {outcome.reward:g}")
    return True


def turn_text(line: str, tools: Mapping[str, Tool]) -> str:
    """The turn that a line stands for: ``/TOOL key=value ...`` is a call, ``//...`` a text that starts with a slash."""
    if line.startswith("//"):
        return line[1:]
    if not line.startswith("/"):
        return line
    try:
        name, *words = shlex.split(line[1:]) or [""]
    except ValueError as error:
        raise NotATurn(f"{error}; quote as in a shell") from None
    if name not in tools:
        raise NotATurn(f"no tool {name!r}; tools: {', '.join(tools) or 'none'}")
    arguments: dict[str, Json] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise NotATurn(f"{word!r} is no argument: write key=value")
        arguments[key] = _value(value, tools[name].parameters["properties"].get(key, {}))
    return tool_call(name, **arguments)


def _value(text: str, schema: Mapping[str, Json]) -> Json:
    if text.startswith("@"):
        try:
            return Path(text[1:]).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise NotATurn(f"{text[1:]} can't be read: {error}") from None
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(messages: tuple[Message, ...] | list[Message]) -> None:
    for message in messages:
        print("\n".join(f"[{message.role}] {visible(line)}" for line in message.content.splitlines() or [""]))
