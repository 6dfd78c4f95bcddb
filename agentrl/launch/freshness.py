"""What plan and summary say of freshness: the lag bound against what is usual, and how often weights should be loaded."""

from __future__ import annotations

from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row
from agentrl.errors import UsageError
from agentrl.staleness import LOAD_SHARE, lag_bound, refresh_interval
from agentrl.store.contract import TrajectoryStore

USUAL = {False: (0.2, 0.3), True: (0.35, 0.5)}
"""Sync strength that works, by whether episodes are a single turn: many turns take long, and their oldest token counts."""


def staleness_line(config: RunConfig, *, single_turn: bool) -> str:
    """How old trained tokens may be, what that admits, and whether it is unusual."""
    return _bound(config) + _note(config.staleness.bound, single_turn)


def _bound(config: RunConfig) -> str:
    pace, bound = config.pace, config.staleness.bound
    if pace.under_way is None:
        return f"unbounded lag; at most {config.rollout.concurrency * max(1, config.rollout.workers)} episodes run at once"
    if bound == 0:
        return "strictly synchronous: nothing is generated while the trainer works on its batch" + (
            "; older tokens of a trajectory are left out of the loss" if config.staleness.mode == "segment_mask" else ""
        )
    under_way = pace.under_way
    if config.oversample is not None:
        under_way = min(under_way, config.trainer.batch + config.oversample)
    parts = [
        "unbounded lag" if bound is None else f"lag of at most {bound} policy update{'' if bound == 1 else 's'}",
        f"at most {under_way} episodes between start and training",
    ]
    if config.oversample is not None:
        parts[-1] += f", of which the first {config.trainer.batch} make a step and the others go on for the next one"
    if config.staleness.mode == "segment_mask":
        parts.append("older tokens of a trajectory are left out of the loss")
    every = config.staleness.refresh_every
    if every > 1:
        parts.append(f"workers load every {_ordinal(every)}")
    return ", ".join(parts)


def _note(bound: int | None, single_turn: bool) -> str:
    eta = USUAL[single_turn]
    low, high = (lag_bound(x) or 0 for x in eta)
    if bound is not None and low <= bound <= high:
        return ""
    means = "fresher: rollout waits more for training" if bound is not None and bound < low else "older: training may get worse"
    kind = "a single turn" if single_turn else "agents"
    return f" (note: a lag of {low} to {high}, eta {eta[0]:g} to {eta[1]:g}, is usual for {kind}; this is {means})"


def refresh_line(config: RunConfig, store: TrajectoryStore) -> str | None:
    """The interval that an earlier run of the same model and engine suggests; None where there is none."""
    for measured in store.query("weight_loads").records():
        earlier = store.find_run(measured["run"])
        if earlier is None or not measured["update_s"]:
            continue
        try:
            then, _ = from_row(earlier.spec.config)
        except UsageError:
            continue  # of a release whose settings this one doesn't read
        if _loads(then) == _loads(config):
            return _proposal(config, measured["load_s"], measured["update_s"], f"in run {measured['run']} ")
    return None


def _loads(config: RunConfig) -> tuple[object, ...]:
    """What decides how long a load takes, as far as settings do."""
    return config.model.path, config.model.sizes, config.engine.kind, config.engine.transport


def refresh_proposal(config: RunConfig, store: TrajectoryStore, run: str) -> str | None:
    """The interval that the run's own loads suggest; None before its second policy update."""
    for measured in store.query("weight_loads", run=run).records():
        if measured["update_s"]:
            return _proposal(config, measured["load_s"], measured["update_s"], "")
    return None


def _proposal(config: RunConfig, load_s: float, update_s: float, where: str) -> str:
    every, bound = config.staleness.refresh_every, config.staleness.bound
    best = refresh_interval(load_s, update_s, bound)
    said = (
        f"{where}a load took {load_s:.3g} s and an update {update_s:.3g} s: with every {_ordinal(every)} loaded, engines spend "
        f"{load_s / (every * update_s):.1%} of their time on it"
    )
    share = load_s / (best * update_s)
    if best != every:
        said += f"; staleness.refresh_every={best} would make it {share:.1%}"
    if share > LOAD_SHARE:
        said += f", and only a larger lag bound than {bound} would bring it under {LOAD_SHARE:.0%}"
    return said


def _ordinal(number: int) -> str:
    if number == 1:
        return "version"
    tens, ones = divmod(number, 10)
    ending = "th" if tens % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th")
    return f"{number}{ending} version"
