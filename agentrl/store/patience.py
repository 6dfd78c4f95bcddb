"""A store whose calls outlast an outage of the database.

Invariants
- repeated_by_key: a call of unknown outcome is made again with the same keys until its outcome is known, so its effect is once
  (the contract's *atomic* and *idempotent*); any other answer, errors included, is passed on as it came.
- bounded: after ``outage_s`` without an answer, or once its process was told to stop, the last `UnknownOutcome` is raised.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, cast

from agentrl.errors import UnknownOutcome
from agentrl.store.contract import TrajectoryStore

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
_NOT_REPEATED = ("subscribe", "close")
"""A subscription outlasts an outage by itself, and leaving needs no answer."""


class _Outlasting:
    def __init__(
        self, store: TrajectoryStore, outage_s: float, stopped: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._store, self._outage_s, self._stopped, self._say = store, outage_s, stopped, say

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name in _NOT_REPEATED or not callable(attribute):
            return attribute
        return functools.partial(self._call, attribute)

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        deadline = time.monotonic() + self._outage_s
        pause, told = FIRST_PAUSE_S, False
        while True:
            try:
                return method(*arguments, **named)
            except UnknownOutcome as error:
                if self._stopped() or time.monotonic() + pause > deadline:
                    raise
                if not told:
                    told = True
                    self._say(f"{method.__name__}: {error}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def outlasting(
    store: TrajectoryStore, outage_s: float, stopped: Callable[[], bool], say: Callable[[str], None]
) -> TrajectoryStore:
    """``store``, with every call repeated for up to ``outage_s`` seconds while its outcome is unknown.

    ``say`` gets one line for each call that has to be repeated.
    """
    return cast(TrajectoryStore, _Outlasting(store, outage_s, stopped, say))
