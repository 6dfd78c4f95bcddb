"""Failed episodes, or gradings, of one worker: which are told, and when the run is not worth going on.

Invariants
- each_kind_is_told: the first episode that failed of a kind is told at once, and how many did at every tenth power.
- told: an environment, engine or sandbox that makes every episode fail ends the run with its error; one that fails by the
  environment's own code ends it as bad input.
- engine_health: one log-prob that is not finite costs an episode, many of them end the run: weights or engine are broken.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from uuid import UUID

from agentrl.errors import AgentRLError, BrokenDistribution, EnvironmentFault, RunFailed
from agentrl.monitor.terminal import say

MAX_KINDS = 10
"""Kinds that are told; the log and the store have all."""
HOPELESS = 100
"""Failed episodes without a single good one after which the worker gives up."""
RECENT, BROKEN_SHARE = 40, 0.25
"""Of so many episodes that ended last, the share whose engine gave broken numbers at which the worker gives up."""
_NUMBER = re.compile(r"(?<![:\w])\d+(?:\.\d+)?|agentrl-[0-9a-f]{24}")
"""Numbers but those of lines of code, and names of containers: what tells two errors of a kind apart."""
_TASK = re.compile(r"task (?:'[^']*'|\"[^\"]*\")")


class Failures:
    """Counts; prints for the user. ``what`` failed, in one word."""

    def __init__(self, what: str = "episode") -> None:
        self._what = what
        self._kinds: Counter[str] = Counter()
        self._of_environment = 0
        self._well = 0
        self._broken: deque[bool] = deque(maxlen=RECENT)
        self.verdict: AgentRLError | None = None
        """Why to give up, once there is a reason."""

    def ended_well(self) -> None:
        """An episode that did not fail, whatever its reward."""
        self._well += 1
        self._broken.append(False)

    def failed(self, trajectory: UUID, error: str, cause: Exception | None) -> None:
        """An episode that failed. ``cause``: what was raised; None where a value says it."""
        kind = _NUMBER.sub("#", _TASK.sub("task", error))[:300]
        self._kinds[kind] += 1
        self._of_environment += isinstance(cause, EnvironmentFault)
        self._broken.append(isinstance(cause, BrokenDistribution))
        count, total = self._kinds[kind], self._kinds.total()
        if len(self._kinds) <= MAX_KINDS and count == 1:
            say(f"  {self._what} {trajectory} failed: {error:.1000}")
        elif len(self._kinds) <= MAX_KINDS and re.fullmatch("10+", str(count)):
            say(f"  {count} of {total + self._well} {self._what}s failed like this: {error:.1000}")
        if self._well == 0 and total >= HOPELESS and self.verdict is None:
            reason = EnvironmentFault if self._of_environment == total else RunFailed
            self.verdict = reason(f"{total} {self._what}s failed and none ended well; the last one: {error}")
        broken = sum(self._broken)
        if len(self._broken) == RECENT and broken >= BROKEN_SHARE * RECENT and self.verdict is None:
            self.verdict = RunFailed(
                f"the engine gave log-probs that are not finite in {broken} of the last {RECENT} episodes: its weights or "
                f"kernels are broken; `agentrl db query engines` says which version each engine holds; the last one: {error}"
            )
