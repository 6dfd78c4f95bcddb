"""Whether a policy that says what gold says would get to its end: turns and tokens against the environment's budgets.

Tokens are counted by a model's own tokenizer and template where one is named. Otherwise they are bounded from below, so that a
budget is refused only when it is too small for any usual tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from agentrl.environment.base import Environment
from agentrl.environment.demonstrate import Played
from agentrl.environment.validation.check import Check
from agentrl.tokens.messages import Message
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.tokens.chat_format import ChatFormat

CHARS_A_TOKEN = 6
"""More than tokenizers of 30,000 to 250,000 tokens reach on prose, code or JSON."""


@dataclass(frozen=True, slots=True)
class Length:
    """Of an episode: tokens of each turn that the policy samples, its stop token included, and of everything."""

    turns: tuple[int, ...]
    total: int


def within_budgets(
    environment: Environment, golds: Sequence[tuple[Task, Sequence[str], Played | None]], chat: ChatFormat | None
) -> Check:
    """``golds``: of each task the turns that gold asks for, and the episode as it was played."""
    lengths = {task.id: _length(environment, played, chat) for task, _, played in golds if played is not None}
    if not lengths:
        return Check("gold within budgets", None, "no gold was played")
    most_turns = max(len(turns) for _, turns, _ in golds)
    longest = max((tokens for length in lengths.values() for tokens in length.turns), default=0)
    total = max((length.total for length in lengths.values()), default=0)
    said = "" if chat is not None else "at least "
    short = [
        f"{name}={budget} is too small: gold of task {where} needs {unit}"
        for name, budget, needed, where, unit in (
            ("max_turns", environment.max_turns, most_turns, _longest(golds), f"{most_turns} turns"),
            ("max_turn_tokens", environment.max_turn_tokens, longest, _most(lengths, _of_a_turn), f"{said}{longest} in a turn"),
            ("max_tokens", environment.max_tokens, total, _most(lengths, lambda length: length.total), f"{said}{total} in all"),
        )
        if needed > budget
    ]
    detail = (
        f"longest: {most_turns} of {environment.max_turns} turns; {said}{longest} of {environment.max_turn_tokens} tokens in a "
        f"turn, {total} of {environment.max_tokens} in all"
    )
    return Check("gold within budgets", not short, "; ".join(short) or detail)


def _longest(golds: Sequence[tuple[Task, Sequence[str], Played | None]]) -> str:
    return repr(max(golds, key=lambda gold: len(gold[1]))[0].id)


def _most(lengths: dict[str, Length], of: Callable[[Length], int]) -> str:
    return repr(max(lengths, key=lambda task: of(lengths[task]), default=""))


def _of_a_turn(length: Length) -> int:
    return max(length.turns, default=0)


def _length(environment: Environment, played: Played, chat: ChatFormat | None) -> Length:
    return _bounded(environment, played) if chat is None else _counted(environment, played, chat)


def _bounded(environment: Environment, played: Played) -> Length:
    scaffold = environment.tokenizer_hints.scaffold if environment.tokenizer_hints else ()

    def least(text: str) -> int:
        pieces = 0
        for piece in scaffold:
            pieces += text.count(piece)
            text = text.replace(piece, "")
        return pieces + -(-len(text) // CHARS_A_TOKEN)

    entries = list(chain.from_iterable(played.contexts))
    turns = tuple(least(entry) + 1 for entry in entries if isinstance(entry, str))
    return Length(turns, sum(turns) + sum(least(entry.content) for entry in entries if isinstance(entry, Message)))


def _counted(environment: Environment, played: Played, chat: ChatFormat) -> Length:
    turns: list[int] = []
    total = 0
    for entries in played.contexts:
        history: list[Message] = []
        new: list[Message] = []
        last = None
        for entry in entries:
            if isinstance(entry, Message):
                new.append(entry)
                continue
            total += len(chat.observation(history, new, last) if history else chat.prompt(new, environment.tool_schemas()))
            action = chat.encode_action(entry)
            history += [*new, Message("assistant", entry)]
            new, last = [], action[-1]
            turns.append(len(action))
    return Length(tuple(turns), total + sum(turns))
