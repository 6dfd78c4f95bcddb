"""What the trainer tells a user: one line a step, a line while it waits, and the score of each evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.monitor.terminal import say
from agentrl.store.contract import Claim, EvaluationResult
from agentrl.types import Place

HEARTBEAT_S = 10.0
_WAITED_FOR = (Place.LIVE, Place.GRADE_JOB, Place.GRADED, Place.READY)
WAITS = 0.1
"""Share of a step's wall time from which waiting is worth a word."""
COLUMNS = (
    ("step", 8),
    ("reward", 6),
    ("success", 7),
    ("held-out", 8),
    ("batch", 5),
    ("lag mean/max", 12),
    ("queue", 5),
    ("hit", 4),
    ("turns", 5),
    ("cut", 4),
    ("s", 6),
    ("tok/s", 6),
    ("kept", 5),
    ("KL", 6),
    ("grad", 6),
    ("EV", 5),
    ("sync", 4),
    ("waits for", 12),
)
"""Of the step line, with their widths. Quality is of the step's trajectories; ``hit`` counts since the start; ``s`` are the
seconds since the last line, ``sync`` the share of them that went into publishing weights."""


class Console:
    """Prints to stdout, which the launcher shares with its children."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._scores: list[EvaluationResult] = []
        self._last_line = time.monotonic()
        self._header_due = True

    def say(self, text: str) -> None:
        self._last_line = time.monotonic()
        say(f"  {text}")

    def waiting(self, claim: Claim, seconds: float) -> None:
        """At most every `HEARTBEAT_S`: what the trainer waits for and where the episodes are."""
        if time.monotonic() - self._last_line < HEARTBEAT_S:
            return
        counts = claim.counts
        shown = [place for place in _WAITED_FOR if counts.get(place, 0) or place is not Place.GRADE_JOB]
        places = ", ".join(f"{place.value} {counts.get(place, 0)}" for place in shown)
        self.say(f"waiting for {claim.waiting or 'rollouts'} since {seconds:.0f} s ({places})")

    @staticmethod
    def queue_depth(claim: Claim) -> int:
        """Trajectories that are ready beside the claimed batch."""
        return claim.counts.get(Place.READY, 0)

    def step(self, step: int, metrics: Mapping[str, Any], queue: int, scores: Sequence[EvaluationResult]) -> None:
        """One line; first the scores that have come in since the last one."""
        for score in scores[len(self._scores) :]:
            self.score(score)
        self._scores = list(scores)
        if self._header_due:
            self._header_due = False
            say("  " + "  ".join(f"{title:>{width}}" for title, width in COLUMNS))
        cells = self._cells(step, metrics, queue)
        say("  " + "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)))
        self._last_line = time.monotonic()

    def _cells(self, step: int, metrics: Mapping[str, Any], queue: int) -> list[str]:
        waits = metrics["wait_s"] / metrics["wall_s"] if metrics["wall_s"] else 0.0
        return [
            f"{step}/{self._steps}",
            _number(metrics.get("reward_mean", math.nan)),
            _number(metrics.get("success", math.nan)),
            _number(_success(self._scores[-1]) if self._scores else math.nan),
            str(metrics["trajectories"]),
            f"{metrics['lag_mean']:.2f}/{metrics['lag_max']}",
            str(queue),
            f"{metrics['hit_rate']:.2f}",
            f"{metrics['turns_mean']:.1f}",
            f"{metrics.get('truncated_share', 0.0):.0%}",
            f"{metrics['wall_s']:.1f}",
            f"{metrics['tokens_per_s']:.0f}",
            _number(metrics.get("kept_fraction", math.nan)),
            _number(metrics.get("kl_k3", math.nan), 4),
            _number(metrics.get("policy_grad_norm", math.nan)),
            _number(metrics.get("explained_variance", math.nan), 2),
            f"{metrics['sync_share']:.0%}",
            f"rollouts {waits:.0%}" if waits > WAITS else "nothing",
        ]

    def score(self, result: EvaluationResult) -> None:
        e = result.evaluation
        if not result.graded:
            self.say(
                f"held-out after step {e.step} (version {e.version}): none of {e.n} episodes was graded; "
                "`agentrl db query stop_reasons` says how they ended"
            )
            return
        share = _success(result)
        half = 1.96 * math.sqrt(max(share * (1 - share), 0) / max(1, result.graded))
        self.say(
            f"held-out after step {e.step} (version {e.version}): success {share:.3f} ± {half:.3f}, "
            f"mean reward {result.mean_reward:.3f}, n={_graded(result)}"
        )


def _graded(result: EvaluationResult) -> str:
    """How many episodes the score is of; those that a budget cut have no verdict and are not in it."""
    n = result.evaluation.n
    return str(n) if result.graded == n else f"{result.graded} graded of {n}"


def _success(result: EvaluationResult) -> float:
    return result.successes / result.graded if result.graded else math.nan


def _number(value: float, digits: int = 3) -> str:
    """A dash for what does not exist yet; an infinity is shown."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
