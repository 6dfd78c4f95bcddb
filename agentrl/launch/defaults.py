"""Settings that an environment brings along, because they belong to its kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import UsageError

_CHOSEN_BEFORE = ("environment", "preset")
"""What decides which layers there are can't come from one of them."""


def run_defaults(environment: str) -> Mapping[str, Any]:
    """The class attribute ``run_defaults`` of the named environment: setting -> value, empty when it has none."""
    from agentrl.environment.registry import resolve

    defaults = resolve(environment).run_defaults
    if not isinstance(defaults, Mapping):
        raise UsageError(f"environment {environment!r}: run_defaults must map settings to values, not {defaults!r:.100}.")
    for key in _CHOSEN_BEFORE:
        if key in defaults:
            raise UsageError(f"environment {environment!r}: run_defaults can't set {key!r}; it is chosen before.")
    return defaults
