"""The printed tables: a row per run, means over seeds, and curves of wrong variants beside right ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.learning.outcome import CURVES

_NUMBERS = {
    "held-out before": ("held_out_before", ".3f"),
    "held-out after": ("held_out_after", ".3f"),
    "trained reward, last part": ("reward_last", ".3f"),
    "trajectories": ("trajectories", ".0f"),
    "wall s": ("wall_s", ".0f"),
    "CPU s without sandboxes": ("cpu_s", ".0f"),
    "peak MB": ("peak_mb", ".0f"),
    "mean lag": ("lag_mean", ".2f"),
    "dropped": ("dropped_total", ".0f"),
}
"""Column -> number of a row, and its format."""

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Label of a cell -> what was measured, a row per seed."""


def each_run(rows: Rows) -> str:
    """A markdown table with one line a run."""
    lines = _header("run", "seed", *_NUMBERS, "why dropped")
    for label, measured in rows.items():
        for row in measured:
            numbers = [_shown([value], spec) for value, spec in _values(row)]
            why = ", ".join(f"{reason} {n}" for reason, n in row["dropped"].items())
            lines.append(_line(label, row["seed"], *numbers, why))
    return "\n".join(lines)


def over_seeds(rows: Rows) -> str:
    """A markdown table with one line a cell: mean and, in brackets, smallest and largest."""
    lines = _header("cell", "seeds", *_NUMBERS)
    for label, measured in rows.items():
        columns = zip(*(_values(row) for row in measured), strict=True)
        shown = [_shown([value for value, _ in column], column[0][1]) for column in columns]
        lines.append(_line(label, len(measured), *shown))
    return "\n".join(lines)


def curves(rows: Rows) -> str:
    """Per cell and curve the means over equal parts of the run, averaged over seeds."""
    lines = _header("cell", "curve", "from the first to the last part of the run")
    for label, measured in rows.items():
        for name in CURVES:
            having = [row["curves"][name] for row in measured if name in row["curves"]]
            if having:
                means = [statistics.fmean(part) for part in zip(*having, strict=False)]
                lines.append(_line(label, name.replace("_", " "), ", ".join(f"{mean:.3f}" for mean in means)))
    return "\n".join(lines)


def _values(row: Mapping[str, Any]) -> list[tuple[float | None, str]]:
    derived = {"reward_last": row["curves"]["reward"][-1], "dropped_total": sum(row["dropped"].values()), **row}
    return [(derived[name], spec) for name, spec in _NUMBERS.values()]


def _shown(values: Sequence[float | None], spec: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean = format(statistics.fmean(known), spec)
    return mean if len(known) == 1 else f"{mean} [{min(known):{spec}}, {max(known):{spec}}]"


def _header(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
