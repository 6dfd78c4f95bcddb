"""The gate before the first update: the trainer must see what the engine saw.

On the first batch with trajectories of lag 0 (the same weights on both sides) it compares, token by token: what trains with
what was sampled, where each turn's reward sits, and the log-prob of every action under the trainer's model with the recorded
one. A wrong prefix, a lost separator, a shifted mask, another temperature or other weights all show as a difference here, long
before they show as a run that does not learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol
from uuid import UUID

import torch

from agentrl.errors import TokenDrift
from agentrl.store.contract import ClaimedItem
from agentrl.trainer.batch import Batch, BatchTrajectory
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import Outputs
from agentrl.types import Segment, StoredTrajectory

TOLERANCE = {"fp32": 1e-4, "bf16": 1.0}
"""Largest difference of a log-prob between engine and trainer, by the trainer's precision. bf16 can only find gross lies."""


class Forward(Protocol):
    """Whoever computes log-probs with the policy's weights."""

    def forward(self, rows: Sequence[Row]) -> Sequence[Outputs]: ...


def check_batch(
    items: Sequence[ClaimedItem], batch: Batch, policy: Forward, precision: Literal["fp32", "bf16"] = "fp32"
) -> float | None:
    """Largest log-prob difference over the items of lag 0; None when the batch has none, so that nothing could be compared.

    `TokenDrift` names trajectory, turn and token of the first lie.
    """
    by_id = {trajectory.id: trajectory for item in items for trajectory in item.trajectories}
    fresh = {trajectory.id for item in items if item.lag == 0 for trajectory in item.trajectories}
    for trajectory in batch.trajectories:
        _check_tokens(by_id[trajectory.id], trajectory)
        _check_rewards(by_id[trajectory.id], trajectory)
    compared = [trajectory for trajectory in batch.trajectories if trajectory.id in fresh]
    return _check_logprobs(compared, policy, TOLERANCE[precision]) if compared else None


def _check_tokens(stored: StoredTrajectory, trajectory: BatchTrajectory) -> None:
    """Replay the segments: same ids in the same order, and exactly the sampled ones have a position that trains."""
    contexts: dict[int, list[tuple[int, bool]]] = {}
    for segment in stored.segments:
        tokens = contexts.setdefault(segment.context, [])
        tokens += [(int(i), False) for i in segment.observation] + [(int(i), True) for i in segment.action]
    for replayed, context in zip(contexts.values(), trajectory.contexts, strict=True):
        actions = set(context.positions.tolist())
        seen = [(token, place in actions) for place, token in enumerate(context.tokens.tolist())]
        for place, (was, now) in enumerate(zip(replayed, seen, strict=True)):
            if was != now:
                kind = "a token that the policy did not sample would be trained" if now[1] else "the token differs"
                raise TokenDrift(f"trajectory {stored.id}, token {place}: {kind} (stored {was}, in the batch {now})")


def _check_rewards(stored: StoredTrajectory, trajectory: BatchTrajectory) -> None:
    """The verdict is the stored one, and a turn's reward sits on the last action of that turn."""
    verdict = stored.reward.value if stored.reward else None
    if trajectory.reward != verdict:
        raise TokenDrift(f"trajectory {stored.id}: reward {trajectory.reward} in the batch, {verdict} in the store")
    turns: Mapping[int, Segment] = dict(enumerate(s for s in stored.segments if s.n_act))
    last = torch.cat([trajectory.turn_id.diff().bool(), torch.ones(1, dtype=torch.bool)])
    for place in trajectory.rewards.nonzero().flatten().tolist():
        turn = int(trajectory.turn_id[place])
        if not last[place]:
            raise TokenDrift(
                f"trajectory {stored.id}, turn {turn}: a reward sits on action token {place}, not on the turn's last"
            )
        if turns[turn].reward is None and turn + 1 < len(turns):
            raise TokenDrift(f"trajectory {stored.id}, turn {turn}: a reward that the store does not have")


def _check_logprobs(trajectories: Sequence[BatchTrajectory], policy: Forward, tolerance: float) -> float:
    rows = [
        Row(context.tokens, context.positions, temperature=trajectory.temperature)
        for trajectory in trajectories
        for context in trajectory.contexts
    ]
    outputs = iter(policy.forward(rows))
    worst = 0.0
    for trajectory in trajectories:
        current = torch.cat([next(outputs)["logprob"] for _ in trajectory.contexts])
        gap = (current - trajectory.logp_rollout).abs()
        if not bool((gap < tolerance).all()):  # written so that NaN is a difference
            raise _difference(trajectory.id, trajectory, current, int((gap < tolerance).int().argmin()), tolerance)
        worst = max(worst, float(gap.max()))
    return worst


def _difference(identity: UUID, trajectory: BatchTrajectory, current: torch.Tensor, place: int, tolerance: float) -> TokenDrift:
    tokens = torch.cat([context.tokens[context.positions] for context in trajectory.contexts])
    return TokenDrift(
        f"trajectory {identity}, turn {int(trajectory.turn_id[place])}, action token {place} (id {int(tokens[place])}): "
        f"the engine recorded log-prob {float(trajectory.logp_rollout[place]):.6f}, the trainer computes "
        f"{float(current[place]):.6f} with the same weights; they may differ by {tolerance:g}. The prompt, the template, the "
        "temperature or the weights are not the same on both sides: nothing was updated."
    )
