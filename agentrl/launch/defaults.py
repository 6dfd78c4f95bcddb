"""Settings that an environment brings along, because they belong to its kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import UsageError

SINGLE_TURN_ETA = 0.4
_CHOSEN_BEFORE = ("environment", "preset")
"""What decides which layers there are can't come from one of them."""


def run_defaults(environment: str) -> Mapping[str, Any]:
    """The class attribute ``run_defaults`` of the named environment: setting -> value.

    A single turn bears older data than an agent's many: a class with ``max_turns = 1`` starts from `SINGLE_TURN_ETA`.
    """
    from agentrl.environment.registry import resolve

    found = resolve(environment)
    defaults = found.run_defaults
    if not isinstance(defaults, Mapping):
        raise UsageError(f"environment {environment!r}: run_defaults must map settings to values, not {defaults!r:.100}.")
    for key in _CHOSEN_BEFORE:
        if key in defaults:
            raise UsageError(f"environment {environment!r}: run_defaults can't set {key!r}; it is chosen before.")
    return {"staleness.eta": SINGLE_TURN_ETA, **defaults} if found.max_turns == 1 else defaults
