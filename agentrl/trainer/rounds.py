"""Rounds of episodes: what an update left behind, and that a pinned round was sampled by the weights that it trains.

Invariants
- pinned_version: in a synchronous or pipelined schedule every token that a batch trains has lag 0, so the version before its
  update sampled all of it. Whatever breaks that is a fault of the system and stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from agentrl.config.schedule import Pace
from agentrl.errors import RunFailed
from agentrl.store.contract import WORK_PLACES, Claim
from agentrl.trainer.batch import Batch
from agentrl.types import Place, PolicyVersion

_PINNED = ("synchronous", "pipelined")


def round_metrics(claim: Claim, pace: Pace) -> dict[str, int]:
    """drop_last: ``carried_over``, trajectories of this round that the update did not wait for; ``late``, trained ones that
    started on older weights. Nothing for other schedules."""
    if pace.schedule != "drop_last":
        return {}
    left = sum(claim.counts[place] for place in WORK_PLACES if place is not Place.LEASE)
    return {"carried_over": left, "late": sum(len(item.trajectories) for item in claim.items if item.lag)}


def check_pinned(batch: Batch, token_lags: Sequence[Tensor], pace: Pace, version: PolicyVersion) -> None:
    """`RunFailed` names the first trajectory that older weights had a part in."""
    if pace.schedule not in _PINNED:
        return
    for trajectory, lags in zip(batch.trajectories, token_lags, strict=True):
        older = (lags != 0) & trajectory.loss_mask
        if bool(older.any()):
            place = int(older.int().argmax())
            raise RunFailed(
                f"trajectory {trajectory.id}, action token {place}: sampled by version {int(trajectory.token_version[place])}, "
                f"{int(lags[place])} policy updates before version {version.version}, which schedule {pace.schedule} pins its "
                f"round to. Nothing was updated. Look at it with: agentrl show {trajectory.id}"
            )
