"""Whether the attributes of an environment are of the kinds that the library relies on, before anything runs on them."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.environment.base import Environment, TokenizerHints
from agentrl.errors import UsageError
from sandboxes.contract import SandboxSpec


def check_declaration(environment: Environment) -> None:
    """`UsageError` that names the class, the attribute, its value and what it must be, a misspelt one, or a method that nobody
    awaits."""
    for method in _NOT_AWAITED:
        if inspect.iscoroutinefunction(getattr(environment, method)) or inspect.isasyncgenfunction(
            getattr(environment, method)
        ):
            raise UsageError(f"{type(environment).__qualname__}.{method} is async; it must be a plain def: it is not awaited")
    for attribute, (holds, wanted) in _KINDS.items():
        value = getattr(environment, attribute)
        if not holds(value):
            raise UsageError(f"{type(environment).__qualname__}.{attribute} is {value!r:.200}; it must be {wanted}")
    _check_spelling(type(environment))


def _check_spelling(cls: type[Environment]) -> None:
    own = {name for base in cls.__mro__ if not issubclass(Environment, base) for name in vars(base)}
    settings = [name for name in _KINDS if "_" in name]  # one word alone is too likely to be meant as it stands
    for name in sorted(name for name in own - set(dir(Environment)) if not name.startswith("_")):
        if meant := difflib.get_close_matches(name, settings, 1, cutoff=0.88):
            raise UsageError(f"{cls.__qualname__}.{name} has no meaning; did you mean {meant[0]}? Else give it another name")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_hints(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, TokenizerHints) or not isinstance(value.split, str) or isinstance(value.scaffold, str):
        return False
    return all(isinstance(text, str) and text for text in value.scaffold)


def _are_specs(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_word(name) and isinstance(spec, SandboxSpec) for name, spec in value.items())


_NOT_AWAITED = ("tasks", "messages", "sandbox_for", "wrong_call", "demonstrator", "gold")
_COUNT = (_is_count, "a whole number of 1 or more")
_SECONDS = (_is_seconds, "a number of seconds above 0, and not infinite")
_FLAG = (lambda value: isinstance(value, bool), "True or False")
_WORD = (_is_word, "a text that is not empty")
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": _WORD,
    "version": _WORD,
    "max_turns": _COUNT,
    "max_turn_tokens": _COUNT,
    "max_tokens": _COUNT,
    "max_result_chars": _COUNT,
    "max_sub_agents": _COUNT,
    "max_seconds": _SECONDS,
    "max_turn_seconds": (lambda value: value is None or _is_seconds(value), f"None or {_SECONDS[1]}"),
    "tool_timeout_s": _SECONDS,
    "grade_timeout_s": _SECONDS,
    "grades_truncated": _FLAG,
    "strict_calls": _FLAG,
    "sandbox": (
        lambda value: value is None or isinstance(value, SandboxSpec),
        'None or a SandboxSpec, as SandboxSpec(image="NAME")',
    ),
    "sandboxes": (_are_specs, 'SandboxSpecs by name, as {"database": SandboxSpec()}'),
    "sub_agents": (lambda value: isinstance(value, Mapping), 'environments by name, as {"reader": Reader()}'),
    "tokenizer_hints": (_are_hints, "None or TokenizerHints(split=REGULAR_EXPRESSION, scaffold=(TEXT, ...))"),
    "run_defaults": (lambda value: isinstance(value, Mapping), 'settings by dotted name, as {"staleness.eta": 0.4}'),
}
