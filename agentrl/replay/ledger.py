"""Credit, assigned again: from the stored rewards and the values that a step used to the advantages that it trained with.

A reward that moved to another turn, another verdict, or a truncation that became a natural end gives other advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.store.contract import Trained
from agentrl.store.evidence import StepEvidence
from agentrl.tokens.audit import drift
from agentrl.trainer.batch import BatchTrajectory, build_batch
from agentrl.trainer.credit import Values, assign_credit, bootstraps
from agentrl.trainer.stale_tokens import mask_versions
from agentrl.types import StoredTrajectory

TOLERANCE = 1e-4
"""Largest difference of an advantage, relative to its size above 1; both sides are float32."""


def check_step(stored: Sequence[StoredTrajectory], evidence: StepEvidence, settings: AlgorithmConfig, max_context: int) -> int:
    """How many trajectories of a step got the same advantages again. ``stored``: in the order of ``evidence``.

    Trajectories whose credit bootstraps are left out (the value after their end is not stored), and groups of which rows are
    gone. `TokenDrift` names the first action token whose advantage differs.
    """
    graded = [
        mask_versions(_with_verdict(s, verdict), masked)
        for s, verdict, masked in zip(stored, evidence.verdicts, evidence.masked_versions, strict=True)
    ]
    batch = build_batch(graded, max_context=max_context)
    if batch.rejected:
        identity, reason = batch.rejected[0]
        liar = next(s for s in stored if s.id == identity)
        raise drift(liar, None, None, f"it trained step {evidence.step}, but its rows would be dropped as {reason.value}")
    if settings.critic is None and sum(s.parent is None for s in stored) < evidence.n_trajectories:
        return 0
    for trajectory, trained in zip(batch.trajectories, evidence.trained, strict=True):
        _check_lengths(trajectory, trained, graded)
    values = [Values(_tensor(t.values), 0.0) for t in evidence.trained if t.values is not None]
    credit = assign_credit(batch, values if settings.critic is not None else None, settings)
    checked = 0
    for trajectory, trained, again in zip(batch.trajectories, evidence.trained, credit.advantages, strict=True):
        if settings.critic is not None and bootstraps(trajectory, settings):
            continue
        _compare(trajectory, _tensor(trained.advantages), again, graded, evidence.step)
        checked += 1
    return checked


def _with_verdict(stored: StoredTrajectory, verdict: float | None) -> StoredTrajectory:
    """A later re-grade does not count: the step used the verdict that it had."""
    if stored.reward is None or verdict is None:
        return stored
    return replace(stored, reward=replace(stored.reward, value=verdict))


def _check_lengths(trajectory: BatchTrajectory, trained: Trained, stored: Sequence[StoredTrajectory]) -> None:
    liar = next(s for s in stored if s.id == trajectory.id)
    arrays = {"log-probs": trained.logprobs, "advantages": trained.advantages, "values": trained.values}
    for name, array in arrays.items():
        if array is not None and len(array) != trajectory.n_actions:
            raise drift(
                liar, None, None, f"{len(array)} {name} were trained, {trajectory.n_actions} tokens are stored as sampled"
            )
    local = trained.local_advantages
    if local is not None and len(local) != trajectory.n_units:
        raise drift(liar, None, None, f"{len(local)} units of credit were trained, {trajectory.n_units} are marked")


def _compare(
    trajectory: BatchTrajectory, recorded: Tensor, again: Tensor, stored: Sequence[StoredTrajectory], step: int
) -> None:
    close = (recorded - again).abs() <= TOLERANCE * recorded.abs().clamp(min=1.0)
    if bool(close.all()):
        return
    place = int(close.int().argmin())
    turn = int(trajectory.turn_id[place])
    liar = next(s for s in stored if s.id == trajectory.id)
    segment = [s for s in liar.segments if s.n_act][turn]
    token = segment.n_obs + place - int((trajectory.turn_id < turn).sum())
    raise drift(
        liar,
        segment,
        token,
        f"step {step} trained it with advantage {float(recorded[place]):.6f}, its rewards now give {float(again[place]):.6f}: "
        "a reward lies on another turn or has another value, or the episode ended otherwise than it says",
    )


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))
