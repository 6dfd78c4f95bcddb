"""Where the seconds of a trajectory went: turn by turn, and from its start to the step that trained it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from agentrl.types import StoredTrajectory

WAITS = {
    "grade_job": "waits for a verdict",
    "graded": "waits for its group",
    "ready": "waits for the trainer",
    "lease": "is trained",
}
"""What a trajectory does in each place that it leaves again after its end."""


@dataclass(frozen=True, slots=True)
class Span:
    """``share``: of the longest of its kind, from 0 to 1."""

    what: str
    seconds: float
    share: float


def turn_spans(stored: StoredTrajectory) -> list[list[Span]]:
    """For each segment the seconds that it waited for the engine, was generated, and ran tools."""
    timed = [
        [("queue", s.timings.queue_s), ("generate", s.timings.generate_s), ("tools", s.timings.tool_s)] for s in stored.segments
    ]
    longest = max((sum(seconds for _, seconds in parts) for parts in timed), default=0.0)
    return [[Span(what, seconds, seconds / longest if longest else 0.0) for what, seconds in parts] for parts in timed]


def life(moves: Sequence[Mapping[str, Any]]) -> list[Span]:
    """From its start on: the episode, grading in it included, and each wait after it.

    ``moves``: rows of `event` of one run, in order.
    """
    spans: list[tuple[str, float]] = []
    began: datetime | None = None
    for move, after in pairwise(moves):
        place, seconds = move["to_place"], (after["at"] - move["at"]).total_seconds()
        if place == "live":
            began = began or move["at"]
            if after["to_place"] == "live":
                continue  # another worker went on with it
            spans.append(("runs", (after["at"] - began).total_seconds()))
        elif place in WAITS:
            spans.append((WAITS[place], seconds))
    longest = max((seconds for _, seconds in spans), default=0.0)
    return [Span(what, seconds, seconds / longest if longest else 0.0) for what, seconds in spans]
