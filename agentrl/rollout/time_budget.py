"""Wall clock of an episode and of its turns: how much is left, and which budget is spent first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from agentrl.types import Termination


@dataclass
class TimeBudget:
    """Seconds since the episode and its present turn began, against their limits; a turn may have none."""

    seconds: float
    turn_seconds: float | None
    _episode_began: float = field(default_factory=time.monotonic)
    _turn_began: float | None = None

    def begin_turn(self) -> None:
        """A turn begins with the request to the engine; its tool calls still belong to it."""
        self._turn_began = time.monotonic()

    def left(self) -> tuple[float, Termination]:
        """Seconds left, negative when overspent, and the budget that is spent with them."""
        now = time.monotonic()
        episode = (self.seconds - (now - self._episode_began), Termination.TRUNCATED_TIME)
        limit = self.turn_seconds
        if limit is None or self._turn_began is None:
            return episode
        return min(episode, (limit - (now - self._turn_began), Termination.TRUNCATED_TURN_TIME))

    def spent(self) -> Termination | None:
        """The budget that is used up, if one is."""
        seconds, budget = self.left()
        return budget if seconds < 0 else None
