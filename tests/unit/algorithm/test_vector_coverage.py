"""Each reference vector is reproduced by a test, or nothing in the library computes it yet."""

from __future__ import annotations

import re
from pathlib import Path

from vectors import names, vector

from agentrl.config.algorithm import AlgorithmConfig, CriticConfig

NOTHING_COMPUTES = {
    "rm_pairwise": "no reward model is trained here",
    "vcpo_opob": "needs the gradient norm of every single sample",
    "group_wait": "a barrier's cost, of schedules",
    "box_shares": "idle shares of boxes, of monitoring",
    "hit_rate": "yield of claims, of monitoring",
}
IN_SQL = {"long_reservation", "sampling_bias"}
"""Reproduced by the store's contract tests, on each implementation."""


def test_vectors__are_all_reproduced_or_listed() -> None:
    used = {
        name for page in Path(__file__).parent.glob("test_*.py") for name in re.findall(r'vector\("(\w+)"\)', page.read_text())
    }
    parametrised = {"dis_teaching", "dis_math_bounds"}
    contract = Path(__file__).parents[2] / "contract" / "store"
    in_sql = {name for name in names() if any(f'["{name}"]' in page.read_text() for page in contract.glob("test_*.py"))}
    assert in_sql == IN_SQL
    assert used | parametrised | IN_SQL | set(NOTHING_COMPUTES) == names()
    assert not used & set(NOTHING_COMPUTES)


def test_critic_schedule__matches_warm_up_and_updates_a_batch() -> None:
    given, expected = vector("sao_schedule")
    config = AlgorithmConfig(critic=CriticConfig(warmup_batches=given["warmup"], updates_per_batch=given["K"]))
    assert config.critic is not None
    assert [int(config.updates_policy(batch)) for batch in given["batches"]] == expected["actor_updates"]
    assert [config.critic.updates_per_batch for _ in given["batches"]] == expected["critic_updates"]
    policy = [sum(config.updates_policy(b) for b in range(batch + 1)) for batch in given["batches"]]
    assert policy == expected["cumulative_actor_updates_after"]
    critic = [config.critic.updates_per_batch * (batch + 1) for batch in given["batches"]]
    assert critic == expected["cumulative_critic_updates_after"]
