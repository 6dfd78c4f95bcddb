"""Lines over steps as SVG: the raw numbers, and a mean of each with its neighbours beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 320, 90
NEIGHBOURS = 5
"""Steps before and after that the smooth line averages."""


@dataclass(frozen=True, slots=True)
class Chart:
    """``raw`` and ``smooth``: points of an SVG polyline; a number that is missing or not finite leaves them out."""

    title: str
    raw: str
    smooth: str
    low: float
    high: float
    last: float
    first_step: int
    last_step: int


def chart(title: str, steps: Sequence[int], values: Sequence[float | None]) -> Chart | None:
    """None without a finite number."""
    found = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None and math.isfinite(value)]
    if not found:
        return None
    numbers = [value for _, value in found]
    low, high = min(numbers), max(numbers)
    first, last = found[0][0], found[-1][0]

    def line(heights: Sequence[float]) -> str:
        points = []
        for (step, _), value in zip(found, heights, strict=True):
            x = WIDTH * ((step - first) / (last - first) if last > first else 0.5)
            y = HEIGHT * (1 - ((value - low) / (high - low) if high > low else 0.5))
            points.append(f"{x:.1f},{y:.1f}")
        return " ".join(points)

    return Chart(title, line(numbers), line(_smooth(numbers)), low, high, numbers[-1], first, last)


def _smooth(numbers: Sequence[float]) -> list[float]:
    windows = (numbers[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1] for i in range(len(numbers)))
    return [sum(window) / len(window) for window in windows]
