"""Skip-observation GAE of padded batches: one vectorised call against the loop over tokens that public trainers run."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algorithm.advantages import length_adaptive_lambda, skip_observation_gae
from benchmarks.report import Row, at_least, at_most, interleaved, table, timed

SHAPES = ((32, 16_384), (8, 65_536))
"""Trajectories and tokens of each."""
QUICK_SHAPES = ((4, 600),)
ROUNDS = 3
FASTER = 10.0
EQUAL = 1e-5
SPAN = 200
"""Longest turn and longest observation, in tokens."""


def measure(quick: bool) -> bool:
    """Prints the table; whether all targets are met (with ``quick``, of the results only: times say nothing then)."""
    torch.set_num_threads(1)
    rows = [row for shape in (QUICK_SHAPES if quick else SHAPES) for row in _compare(*shape, 1 if quick else ROUNDS)]
    print(table(rows), flush=True)
    return all(row.met for row in rows if not (quick and row.target.startswith(">=")))


def token_loop(rewards: Tensor, values: Tensor, actions: Tensor, gamma: float, lam: Tensor) -> Tensor:
    """The plain form: backwards over all positions, one step of all rows at a time, carrying value and sum over gaps."""
    following = torch.zeros_like(values[:, 0])
    carry = torch.zeros_like(following)
    columns: list[Tensor] = []
    keep = actions.to(values.dtype)
    for t in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * following - values[:, t]
        own = delta + gamma * lam * carry
        carry = keep[:, t] * own + (1 - keep[:, t]) * carry
        following = keep[:, t] * values[:, t] + (1 - keep[:, t]) * following
        columns.append(keep[:, t] * own)
    return torch.stack(columns[::-1], dim=1)


def batch(trajectories: int, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values, action mask and lambda of random trajectories: turns and observations alternate."""
    generator = torch.Generator().manual_seed(0)
    spans = torch.randint(1, SPAN, (trajectories, tokens), generator=generator)
    starts = torch.zeros(trajectories, tokens + 1, dtype=torch.int64)
    ends = spans.cumsum(1)
    starts.scatter_add_(1, ends.clamp(max=tokens), torch.ones_like(ends))
    actions = starts.cumsum(1)[:, :tokens] % 2 == 1
    values = torch.rand(trajectories, tokens, generator=generator)
    rewards = torch.zeros_like(values)
    rewards.scatter_(1, (actions * torch.arange(tokens)).argmax(1, keepdim=True), 1.0)
    lam = torch.tensor([length_adaptive_lambda(int(n)) for n in actions.sum(1)])
    return rewards, values, actions, lam


def _compare(trajectories: int, tokens: int, rounds: int) -> list[Row]:
    rewards, values, actions, lam = batch(trajectories, tokens)
    finals = torch.zeros(trajectories)

    def vectorised() -> Tensor:
        return skip_observation_gae(rewards, values, actions, final_values=finals, gamma=1.0, lam=lam)

    times = interleaved(
        rounds,
        {
            "loop": lambda: timed(lambda: token_loop(rewards, values, actions, 1.0, lam)),
            "vectorised": lambda: timed(vectorised),
        },
    )
    exact = token_loop(rewards.double(), values.double(), actions, 1.0, lam.double())
    apart = float((vectorised() - exact).abs().max())
    loop, own = times["loop"].wall, times["vectorised"].wall
    shape = f"GAE, {trajectories} x {tokens:,} tokens"
    return [
        at_least(f"{shape}: speed", f"{own * 1e3:.1f} ms", f"loop over tokens: {loop * 1e3:.0f} ms", loop / own, FASTER),
        at_most(f"{shape}: largest difference", f"{apart:.1e}", "the loop in float64", apart, EQUAL),
    ]
