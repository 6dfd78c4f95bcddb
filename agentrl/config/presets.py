"""Presets are data: the values of an algorithm for real models, and the overlay for the small model built from scratch.

Sources: ``sao_turn`` and ``sao`` follow Single-rollout Asynchronous Optimization (arXiv 2607.07508, code-agent settings), the
first with turn-level advantages; ``grpo`` follows DeepSeekMath (arXiv 2402.03300) with group size 8 and no reference KL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

PRESETS: Mapping[str, Values] = {
    "sao_turn": {
        "algorithm.advantage": "turn_gae",
        "algorithm.loss": "dis",
        "algorithm.ratio_low": 0.2,
        "algorithm.ratio_high": 4.0,
        "staleness.eta": 0.25,
    },
    "sao": {
        "algorithm.advantage": "token_gae",
        "algorithm.loss": "dis",
        "algorithm.ratio_low": 0.2,
        "algorithm.ratio_high": 4.0,
        "staleness.eta": 0.25,
    },
    "grpo": {
        "algorithm.advantage": "group",
        "algorithm.critic": None,
        "algorithm.group_size": 8,
        "algorithm.group_std": True,
        "algorithm.loss": "ppo_clip",
        "algorithm.ratio_low": 0.8,
        "algorithm.ratio_high": 1.28,
        "algorithm.aggregation": "seq_mean_token_mean",
        "algorithm.truncation": "zero",
        "staleness.eta": 0.2,
    },
}

TINY_REASON = "a small model trained from scratch learns with other values than a pre-trained one"

_TINY: Values = {
    "algorithm.ratio_low": 0.7,
    "algorithm.ratio_high": 1.5,
    "staleness.lag": 1,
    "trainer.batch": 64,
    "trainer.steps": 110,
    "trainer.learning_rate": 4e-4,
    "trainer.final_learning_rate": 0.1,
}

_TINY_CRITIC: Values = {
    "algorithm.gae_lambda": 1.0,
    "algorithm.critic.learning_rate": 1e-3,
    "algorithm.critic.warmup_batches": 4,
    "algorithm.critic.freeze_attention": False,
    "algorithm.critic.value_eval": "before",
}

TINY: Mapping[str, Values] = {
    "sao_turn": {**_TINY, **_TINY_CRITIC},
    "sao": {**_TINY, **_TINY_CRITIC},
    "grpo": {**_TINY, "algorithm.group_std": False, "algorithm.aggregation": "token_mean"},
}
