"""How trajectories become batches in time: the schedule of a run.

| schedule | an update starts | meanwhile |
|---|---|---|
| synchronous | when the whole round is ready | nothing is generated until its weights are out |
| drop_last | when all but a capped share of the round is ready | what is late goes on and counts in the next round |
| pipelined | when the whole round is ready, most of it trained on already, part by part as it came | as synchronous |
| group_async | when enough whole groups are ready, oldest first | generation goes on, within the lag bound |
| async | when enough trajectories are ready, oldest first | generation goes on, within the lag bound |

A round is one batch of episodes, all started on the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from agentrl.config.algorithm import AlgorithmConfig

Schedule = Literal["synchronous", "drop_last", "pipelined", "group_async", "async"]

DROP_SHARE = 0.05
"""Of a round: losing more costs data and quality."""
PARTS = 8
"""Into how many parts a pipelined round falls unless it is set."""
LAGS: Mapping[str, int] = {"synchronous": 0, "drop_last": 1, "pipelined": 0}
"""The lag bound that a schedule of rounds brings along: late trajectories are as old as the rounds they were late for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a schedule means in numbers; ``batch_min`` and ``batch_max`` count trajectories.

    ``ahead``: see `agentrl.store.contract.RunSpec`. ``part``: fewest trajectories that are trained on as soon as they are
    ready, None unless pipelined.
    """

    schedule: Schedule
    batch_min: int
    batch_max: int
    lag_bound: int | None
    ahead: int | None
    part: int | None

    @property
    def may_be_late(self) -> int:
        """Trajectories of a round that an update does not wait for."""
        return self.batch_max - self.batch_min if self.schedule == "drop_last" else 0

    @property
    def under_way(self) -> int | None:
        """Most trajectories between their start and their training; None without a bound."""
        if self.ahead is not None:
            return (self.ahead + 1) * self.batch_max
        return None if self.lag_bound is None else (self.lag_bound + 1) * self.batch_min


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings that decide about a schedule; None where the user left it open."""

    schedule: Schedule | None
    batch: int
    batch_min: int | None
    drop_share: float | None
    part: int | None
    lag_bound: int | None
    refresh_every: int
    long_share: float | None


def pace_of(wanted: Wanted, algorithm: AlgorithmConfig) -> Pace:
    """The pace of a run. `ValueError` names the settings that contradict each other, their values and a way out.

    Without a schedule: synchronous where the lag bound is 0, else group_async with groups and async without.
    """
    group, bound = algorithm.group_size, wanted.lag_bound
    schedule: Schedule = wanted.schedule or ("synchronous" if bound == 0 else "group_async" if group > 1 else "async")
    complaints = [*_contradictions(schedule, wanted, group)]
    if schedule == "pipelined":
        complaints += _whole_batch_readers(algorithm)
    if complaints:
        raise ValueError("; ".join(complaints))
    least = wanted.batch if wanted.batch_min is None else wanted.batch_min
    part = None
    if schedule == "drop_last":
        least = wanted.batch - late_places(wanted, group)
    if schedule == "pipelined":
        part = wanted.part or min(wanted.batch, -(-wanted.batch // (PARTS * group)) * group)
    return Pace(schedule, least, wanted.batch, bound, 0 if schedule in LAGS else None, part)


def late_places(wanted: Wanted, group: int) -> int:
    """Trajectories, in whole groups, that the drop share of a round comes to."""
    share = Fraction(str(DROP_SHARE if wanted.drop_share is None else wanted.drop_share))  # as written: 0.07 of 100 is 7
    return int(share * wanted.batch / group) * group


def _contradictions(schedule: Schedule, wanted: Wanted, group: int) -> Iterator[str]:
    yield from _unread(schedule, wanted)
    bound, named = wanted.lag_bound, f"trainer.schedule={schedule}"
    if schedule in ("synchronous", "pipelined") and bound != 0:
        yield (
            f"{named} trains each batch on the weights that sampled it, but the lag bound is {_said(bound)}: leave "
            f"staleness.lag and staleness.eta out, or use trainer.schedule={'group_async' if group > 1 else 'async'}"
        )
    if schedule in ("drop_last", "group_async", "async") and bound == 0:
        why = "leaves late trajectories to the next round" if schedule == "drop_last" else "goes on generating during updates"
        yield f"{named} {why}, but the lag bound is 0: set staleness.lag to 1 or more, or use trainer.schedule=synchronous"
    if schedule == "async" and group > 1:
        yield f"{named} takes single trajectories, but algorithm.group_size is {group}: use trainer.schedule=group_async"
    if schedule == "group_async" and group == 1:
        yield f"{named} takes whole groups, but algorithm.group_size is 1: use trainer.schedule=async, or a preset with groups"
    least = wanted.batch if wanted.batch_min is None else wanted.batch_min
    if schedule not in LAGS and bound and least * (bound + 1) < wanted.batch:
        enough = -(-wanted.batch // ((bound + 1) * group)) * group
        yield (
            f"with trainer.batch_min {least} and a lag bound of {bound} at most {least * (bound + 1)} trajectories are under "
            f"way, so no update could take trainer.batch ({wanted.batch}): raise trainer.batch_min to {enough} or more, or "
            f"staleness.lag to {-(-wanted.batch // least) - 1} or more"
        )
    if schedule == "drop_last" and wanted.refresh_every > 1:
        yield (
            f"{named} starts each round on the newest weights, but staleness.refresh_every is {wanted.refresh_every}: "
            "set it to 1"
        )
    if schedule == "drop_last" and not late_places(wanted, group):
        share = DROP_SHARE if wanted.drop_share is None else wanted.drop_share
        item = "trajectory" if group == 1 else f"group of {group}"
        yield (
            f"trainer.drop_share ({share:g}) of trainer.batch ({wanted.batch}) is less than one {item}: raise it to "
            f"{group / wanted.batch:.3g} or more, or use trainer.schedule=synchronous"
        )
    if schedule == "pipelined" and wanted.part is not None and (wanted.part % group or wanted.part > wanted.batch):
        yield (
            f"trainer.pipeline_part ({wanted.part}) must be a multiple of algorithm.group_size ({group}) and at most "
            f"trainer.batch ({wanted.batch})"
        )


def _unread(schedule: Schedule, wanted: Wanted) -> Iterator[str]:
    named = f"trainer.schedule={schedule}"
    if wanted.drop_share is not None and schedule != "drop_last":
        yield f"trainer.drop_share ({wanted.drop_share:g}) is not read with {named}: use trainer.schedule=drop_last, or drop it"
    if wanted.part is not None and schedule != "pipelined":
        yield f"trainer.pipeline_part ({wanted.part}) is not read with {named}: use trainer.schedule=pipelined, or drop it"
    if wanted.batch_min not in (None, wanted.batch) and schedule in LAGS:
        instead = "set trainer.drop_share instead" if schedule == "drop_last" else "leave it out"
        yield f"trainer.batch_min ({wanted.batch_min}) below trainer.batch ({wanted.batch}) contradicts {named}: {instead}"
    if wanted.long_share is not None and schedule in LAGS:
        yield (
            f"trainer.long_share ({wanted.long_share:g}) keeps places for what ends late, but {named} trains its whole round: "
            "leave it out"
        )


def _whole_batch_readers(algorithm: AlgorithmConfig) -> Iterator[str]:
    """What can't be had before the whole batch is there, so that a part of it has no gradient yet."""
    named = "trainer.schedule=pipelined trains on parts of a batch"
    if algorithm.advantage == "reinforce_pp":
        yield f"{named}, but algorithm.advantage=reinforce_pp whitens returns over the whole: choose another preset"
    if algorithm.normalise != "none":
        yield f"{named}, but algorithm.normalise={algorithm.normalise} whitens advantages over the whole: set it to none"
    if algorithm.critic is not None and algorithm.critic.value_eval == "after":
        yield (
            f"{named}, but algorithm.critic.value_eval=after reads values after the critic has seen the whole: set it to before"
        )
    if algorithm.passes > 1:
        yield f"{named}, but algorithm.passes is {algorithm.passes}, and a second pass needs the whole: set it to 1"


def _said(bound: int | None) -> str:
    return "unbounded (staleness.eta=1)" if bound is None else str(bound)
