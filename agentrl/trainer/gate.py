"""The trainer must see what the engine saw: the gate before the first update, and the same comparisons for a replay.

The gate: on the first batch with trajectories of lag 0 (the same weights on both sides) it compares, token by token: what
trains with what was sampled, where each turn's reward sits, and the log-prob of every action under the trainer's model with the
recorded one. A wrong prefix, a lost separator, a shifted mask, another temperature or other weights all show as a difference
here, long before they show as a run that does not learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

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
    """Largest log-prob difference over the items of lag 0 without masked tokens, which may be older; None when there are none.

    `TokenDrift` names trajectory, turn and token of the first lie.
    """
    by_id = {member.id: member for item in items for episode in item.trajectories for member in episode.family}
    fresh = {member.id for item in items if item.lag == 0 for episode in item.trajectories for member in episode.family}
    for trajectory in batch.trajectories:
        check_tokens(by_id[trajectory.id], trajectory)
        check_rewards(by_id[trajectory.id], trajectory)
    compared = [t for t in batch.trajectories if t.id in fresh and bool(t.loss_mask.all())]
    return check_logprobs(compared, policy, tolerance=TOLERANCE[precision]).largest if compared else None


@dataclass(frozen=True, slots=True)
class Compared:
    """``largest`` difference of a log-prob over ``tokens`` action tokens."""

    largest: float
    tokens: int


def check_tokens(stored: StoredTrajectory, trajectory: BatchTrajectory) -> None:
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


def check_rewards(stored: StoredTrajectory, trajectory: BatchTrajectory) -> None:
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


def check_logprobs(
    trajectories: Sequence[BatchTrajectory],
    policy: Forward,
    *,
    version: int | None = None,
    tolerance: float = TOLERANCE["fp32"],
) -> Compared:
    """Recompute log-probs with ``policy`` and compare them with the recorded ones, of tokens of ``version`` alone if given."""
    rows = [
        Row(context.tokens, context.positions, temperature=trajectory.temperature)
        for trajectory in trajectories
        for context in trajectory.contexts
    ]
    outputs = iter(policy.forward(rows))
    worst, tokens = 0.0, 0
    for trajectory in trajectories:
        current = torch.cat([next(outputs)["logprob"] for _ in trajectory.contexts])
        gap = (current - trajectory.logp_rollout).abs()
        if version is not None:
            gap = torch.where(trajectory.token_version == version, gap, 0.0)
            tokens += int((trajectory.token_version == version).sum())
        else:
            tokens += len(gap)
        if not bool((gap < tolerance).all()):  # written so that NaN is a difference
            place = int((gap < tolerance).int().argmin())
            raise _difference(trajectory, float(current[place]), place, tolerance)
        worst = max(worst, float(gap.max()))
    return Compared(worst, tokens)


def _difference(trajectory: BatchTrajectory, current: float, place: int, tolerance: float) -> TokenDrift:
    tokens = torch.cat([context.tokens[context.positions] for context in trajectory.contexts])
    turn = int(trajectory.turn_id[place])
    in_turn = place - int((trajectory.turn_id < turn).sum())
    return TokenDrift(
        f"trajectory {trajectory.id}, segment {turn}, action token {in_turn} (id {int(tokens[place])}): the engine recorded "
        f"log-prob {float(trajectory.logp_rollout[place]):.6f} under version {int(trajectory.token_version[place])}, the "
        f"trainer computes {current:.6f} with those weights; they may differ by {tolerance:g}. The prompt, the template, the "
        "temperature or the weights are not the same on both sides."
    )
