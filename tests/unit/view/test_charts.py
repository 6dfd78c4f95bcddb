"""Lines over steps: what is missing is left out, and a flat line is a line."""

from __future__ import annotations

import math

import pytest

from agentrl.view.charts import HEIGHT, NEIGHBOURS, WIDTH, chart


def points(line: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in line.split())]


def test_chart__spans_its_box_from_low_to_high() -> None:
    drawn = chart("reward", [1, 2, 3], [0.0, 1.0, 0.5])
    assert drawn is not None
    assert points(drawn.raw) == [(0, HEIGHT), (WIDTH / 2, 0), (WIDTH, HEIGHT / 2)]
    assert (drawn.low, drawn.high, drawn.last, drawn.first_step, drawn.last_step) == (0, 1, 0.5, 1, 3)


def test_chart__smooth_line_is_the_mean_of_the_neighbours() -> None:
    values = [float(i % 2) for i in range(40)]
    drawn = chart("x", list(range(40)), values)
    assert drawn is not None
    window = values[20 - NEIGHBOURS : 21 + NEIGHBOURS]
    assert points(drawn.smooth)[20][1] == pytest.approx(HEIGHT * (1 - sum(window) / len(window)), abs=0.06)


def test_chart__missing_and_non_finite_numbers_are_left_out() -> None:
    drawn = chart("x", [1, 2, 3, 4], [math.nan, None, 2.0, math.inf])
    assert drawn is not None
    assert points(drawn.raw) == [(WIDTH / 2, HEIGHT / 2)]
    assert chart("x", [1, 2], [None, math.nan]) is None
    assert chart("x", [], []) is None


def test_chart__flat_line_lies_in_the_middle() -> None:
    drawn = chart("x", [1, 2], [3.0, 3.0])
    assert drawn is not None
    assert {y for _, y in points(drawn.raw)} == {HEIGHT / 2}
