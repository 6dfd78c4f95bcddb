"""Presets are data: the values of an algorithm for real models, their source, and the overlay for a model built from scratch.

``staleness.eta`` 0.25 allows a lag of 2 policy updates, 0.2 also 2, 0.35 allows 4, 0 is strictly synchronous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """``values`` by dotted key; ``tiny`` goes on top when the model is built here; ``source``: where the values come from."""

    values: Values
    tiny: Values
    source: str


TINY_REASON = "a small model trained from scratch learns with other values than a pre-trained one"

_TINY: Values = {
    "staleness.lag": 1,
    "trainer.batch": 64,
    "trainer.steps": 110,
    "trainer.learning_rate": 4e-4,
    "trainer.final_learning_rate": 0.1,
}
_TINY_BOUNDS: Values = {"algorithm.ratio_low": 0.7, "algorithm.ratio_high": 1.5}
_TINY_CRITIC: Values = {
    "algorithm.gae_lambda": 1.0,
    "algorithm.critic.learning_rate": 1e-3,
    "algorithm.critic.warmup_batches": 4,
    "algorithm.critic.freeze_attention": False,
    "algorithm.critic.value_eval": "before",
}
_CODE_BOUNDS: Values = {"algorithm.ratio_low": 0.2, "algorithm.ratio_high": 4.0}
_CLIP: Values = {"algorithm.ratio_low": 0.8, "algorithm.ratio_high": 1.2}
_CLIP_HIGHER: Values = {"algorithm.ratio_low": 0.8, "algorithm.ratio_high": 1.28}
_GROUP: Values = {
    "algorithm.advantage": "group",
    "algorithm.critic": None,
    "algorithm.group_size": 8,
    "algorithm.truncation": "zero",
    "staleness.eta": 0.2,
}
_NORMALISED_GROUP: Values = {**_GROUP, "algorithm.group_std": True}
_CLASSIC_CRITIC: Values = {"algorithm.critic.value_eval": "before", "algorithm.critic.freeze_attention": False}

PRESETS: Mapping[str, Preset] = {
    "sao_turn": Preset(
        {
            "algorithm.advantage": "turn_gae",
            "algorithm.loss": "dis",
            **_CODE_BOUNDS,
            "staleness.eta": 0.25,
        },
        {**_TINY_BOUNDS, **_TINY, **_TINY_CRITIC},
        "Single-rollout Asynchronous Optimization (arXiv 2607.07508, code agents), advantages per turn",
    ),
    "sao": Preset(
        {
            "algorithm.advantage": "token_gae",
            "algorithm.loss": "dis",
            **_CODE_BOUNDS,
            "staleness.eta": 0.25,
        },
        {**_TINY_BOUNDS, **_TINY, **_TINY_CRITIC},
        "Single-rollout Asynchronous Optimization (arXiv 2607.07508, code agents)",
    ),
    "grpo_dis": Preset(
        {**_NORMALISED_GROUP, "algorithm.loss": "dis", **_CODE_BOUNDS},
        {**_TINY_BOUNDS, **_TINY, "algorithm.group_std": False},
        "GLM-5 (arXiv 2602.15763) and the GRPO+DIS baseline of arXiv 2607.07508, code agents",
    ),
    "ppo": Preset(
        {
            "algorithm.advantage": "token_gae",
            "algorithm.gae_lambda": 0.95,
            "algorithm.loss": "ppo_clip",
            **_CLIP,
            **_CLASSIC_CRITIC,
            "algorithm.critic.gae_lambda": 0.95,
            "staleness.eta": 0.0,
        },
        {**_TINY_BOUNDS, **_TINY, **_TINY_CRITIC},
        "Schulman et al. 2017 (arXiv 1707.06347), gamma 1 as usual for language models",
    ),
    "decoupled_ppo": Preset(
        {
            "algorithm.advantage": "token_gae",
            "algorithm.gae_lambda": 1.0,
            "algorithm.loss": "decoupled_ppo",
            **_CLIP,
            **_CLASSIC_CRITIC,
            "staleness.eta": 0.35,
        },
        {**_TINY_BOUNDS, **_TINY, **_TINY_CRITIC},
        "AReaL (arXiv 2505.24298, eq. 5)",
    ),
    "grpo": Preset(
        {
            **_NORMALISED_GROUP,
            "algorithm.loss": "ppo_clip",
            **_CLIP_HIGHER,
            "algorithm.aggregation": "seq_mean_token_mean",
            "algorithm.kl.coefficient": 0.01,
        },
        {
            **_TINY_BOUNDS,
            **_TINY,
            "algorithm.group_std": False,
            "algorithm.aggregation": "token_mean",
            "algorithm.kl.coefficient": 0.0,
        },
        "DeepSeekMath (arXiv 2402.03300) with group size 8, clip-higher and a smaller KL coefficient",
    ),
    "dr_grpo": Preset(
        {
            **_GROUP,
            "algorithm.loss": "ppo_clip",
            **_CLIP,
            "algorithm.aggregation": "seq_mean_token_sum_norm",
            "algorithm.length_norm": 4096,
        },
        {**_TINY_BOUNDS, **_TINY, "algorithm.length_norm": 64},
        "Dr. GRPO (arXiv 2503.20783)",
    ),
    "dapo": Preset(
        {
            **_NORMALISED_GROUP,
            "algorithm.loss": "ppo_clip",
            **_CLIP_HIGHER,
            "algorithm.drop_uniform_groups": True,
            "algorithm.truncation": "mask",
        },
        {**_TINY_BOUNDS, **_TINY, "algorithm.group_std": False},
        "DAPO (arXiv 2503.14476): clip-higher, token mean, uniform groups dropped, cut-off episodes masked",
    ),
    "rloo": Preset(
        {
            **_GROUP,
            "algorithm.advantage": "leave_one_out",
            "algorithm.loss": "ppo_clip",
            **_CLIP,
            "algorithm.aggregation": "seq_mean_token_sum",
        },
        {**_TINY_BOUNDS, **_TINY},
        "Ahmadian et al. 2024 (arXiv 2402.14740), with a clipped ratio for asynchrony",
    ),
    "gspo": Preset(
        {
            **_NORMALISED_GROUP,
            "algorithm.loss": "gspo",
            "algorithm.ratio_low": 0.9997,
            "algorithm.ratio_high": 1.0004,
            "algorithm.ratio_to": "proximal",
            "algorithm.passes": 2,
            "algorithm.aggregation": "seq_mean_token_mean",
        },
        {
            **_TINY,
            "algorithm.group_std": False,
            "algorithm.ratio_low": 0.9,
            "algorithm.ratio_high": 1.1,
            "algorithm.ratio_to": "rollout",
            "algorithm.passes": 1,
        },
        "GSPO (arXiv 2507.18071); its bounds are for the ratio to the weights at the start of the batch, two passes",
    ),
    "cispo": Preset(
        {
            **_NORMALISED_GROUP,
            "algorithm.loss": "cispo",
            "algorithm.ratio_low": 0.0,
            "algorithm.ratio_high": 1.28,
        },
        {**_TINY, "algorithm.group_std": False},
        "MiniMax-M1 (arXiv 2506.13585): no lower bound",
    ),
    "reinforce_pp": Preset(
        {
            "algorithm.advantage": "reinforce_pp",
            "algorithm.critic": None,
            "algorithm.loss": "ppo_clip",
            **_CLIP,
            "algorithm.truncation": "zero",
            "algorithm.kl.coefficient": 0.01,
            "algorithm.kl.place": "reward",
            "algorithm.kl.estimator": "k1",
            "staleness.eta": 0.2,
        },
        {**_TINY_BOUNDS, **_TINY},
        "REINFORCE++ (arXiv 2501.03262): returns whitened over the batch, KL in the reward",
    ),
    "turn_ppo": Preset(
        {
            "algorithm.advantage": "turn_gae",
            "algorithm.gamma": 0.99,
            "algorithm.gae_lambda": 0.9,
            "algorithm.loss": "ppo_clip",
            **_CLIP,
            **_CLASSIC_CRITIC,
            "algorithm.critic.gae_lambda": 0.9,
            "staleness.eta": 0.2,
        },
        {**_TINY_BOUNDS, **_TINY, **_TINY_CRITIC},
        "Turn-PPO: PPO over turns with its reported best gamma and lambda",
    ),
}
