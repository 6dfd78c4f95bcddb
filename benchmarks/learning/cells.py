"""The experiments as data: which runs each one needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.config.presets import PRESETS

ENVIRONMENT = "code_agent"
DIS_BOUNDS = (("0.7", "1.5"), ("0.7", "6"), ("0.2", "4"))
DIS_LAGS = (0, 2, 4)


@dataclass(frozen=True)
class Cell:
    """One run: a preset, a seed and what differs from it. ``control``: a wrong variant of `benchmarks.learning.controls`."""

    label: str
    preset: str
    seed: int
    sync: bool = False
    overrides: tuple[str, ...] = ()
    control: str | None = None

    def arguments(self, size: Sequence[str]) -> list[str]:
        """What ``agentrl`` is called with, but for the run's name; ``size``: settings that all cells share."""
        named = ["train", "--env", ENVIRONMENT, "--preset", self.preset, "--seed", str(self.seed)]
        return [*named, *(["--sync"] if self.sync else []), *self.overrides, *size]


@dataclass(frozen=True)
class Experiment:
    """``cells``: the runs for one seed."""

    what: str
    cells: Callable[[int], list[Cell]]


def _presets(seed: int) -> list[Cell]:
    return [Cell(preset, preset, seed) for preset in PRESETS]


def _credit(seed: int) -> list[Cell]:
    per = {"sao_turn": "per turn", "sao": "per token"}
    modes = {"asynchronous": False, "synchronous": True}
    return [Cell(f"{per[p]}, {mode}", p, seed, sync) for p in per for mode, sync in modes.items()]


def _dis(seed: int) -> list[Cell]:
    cells = []
    for low, high in DIS_BOUNDS:
        for lag in DIS_LAGS:
            # On few cores rollouts are the slower part and a wide bound alone is never used: workers load every lag-th version.
            staleness = (f"staleness.lag={lag}", f"staleness.refresh_every={max(1, lag)}")
            bounds = (f"algorithm.ratio_low={low}", f"algorithm.ratio_high={high}")
            cells.append(Cell(f"DIS ({low}, {high}), lag bound {lag}", "sao_turn", seed, overrides=bounds + staleness))
    return cells


def _controls(seed: int) -> list[Cell]:
    whitened = ("algorithm.normalise=token",)
    return [
        Cell("right: a unit is a turn", "sao_turn", seed),
        Cell("wrong: cut by token count", "sao_turn", seed, control="hard_cut"),
        Cell("right: whitened over the batch", "sao_turn", seed, overrides=whitened),
        Cell("wrong: whitened per micro-batch", "sao_turn", seed, overrides=whitened, control="micro_batch"),
    ]


EXPERIMENTS = {
    "presets": Experiment("every preset", _presets),
    "credit": Experiment("credit per turn and per token, asynchronous and synchronous, equal trajectories", _credit),
    "dis": Experiment("DIS bounds (0.7, 1.5), (0.7, 6), (0.2, 4) at lag bounds 0, 2, 4, engines as late as that", _dis),
    "controls": Experiment("two wrong variants beside the right ones: cut by token count, whitened per micro-batch", _controls),
}
