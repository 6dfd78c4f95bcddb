"""One data-parallel rank: trains on the batch that rank 0 tells it and writes the advantages that it got.

As a program under torchrun's environment: ``python -m tests.unit.trainer.replica_rank FOLDER``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from uuid import UUID

import torch
import torch.distributed as dist

from agentrl.config.layout import LayoutSettings
from agentrl.config.load import resolve
from agentrl.trainer.batch import build_batch
from agentrl.trainer.channel import Channel
from agentrl.trainer.megatron.build import join_world
from agentrl.trainer.update import train_on
from tests.unit.trainer.trainer_samples import random_trajectory, reference_model, trained

PRESETS = {
    "grpo": [],
    "sao_turn": ["algorithm.normalise=turn", "algorithm.critic.value_eval=after", "algorithm.critic.learning_rate=0.01"],
}


def advantages(preset: str, overrides: list[str], channel: Channel) -> list[torch.Tensor]:
    """Of each trajectory of one group of eight, as this rank used them in an update."""
    settings = resolve(environment="code_agent", preset=preset, file=None, flags={}, overrides=overrides).config.algorithm
    reference, layout = reference_model(), LayoutSettings(data=2)
    policy = trained(reference, layout=layout)
    critic = None if settings.critic is None else trained(reference, "critic", layout=layout)
    members = [random_trajectory(i, policy, group=UUID(int=1)) for i in range(8)]  # all ranks compute log-probs together
    if dist.get_rank() == 0:
        batch = build_batch(members, max_context=100)
        channel.tell(batch)
    else:
        batch = channel.hear()
    result = train_on(batch, policy, critic, settings, policy_lr=1e-3, update_policy=True)
    return [torch.from_numpy(t.advantages) for t in result.trained]


def main(folder: Path) -> None:
    join_world()
    channel = Channel()
    found = {preset: advantages(preset, overrides, channel) for preset, overrides in PRESETS.items()}
    torch.save(found, folder / f"rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
