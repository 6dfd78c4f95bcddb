"""Wrong variants, to see what being wrong costs. They exist here alone: this process replaces functions of its own trainer.

``python -m benchmarks.learning.controls NAME train ...`` is ``agentrl train ...`` whose trainer runs under the control NAME.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import Tensor

PIECE = 8
"""Action tokens of a piece; about those of a turn in the default task."""
MICRO_BATCH = 4
"""Trajectories that are whitened together."""
_COMMAND = "agentrl.cli.main"


def hard_cut() -> None:
    """Units of credit are pieces of `PIECE` action tokens wherever turns begin, and the verdict is averaged over them."""
    import torch

    from agentrl.algorithm.turns import turn_ends
    from agentrl.config.algorithm import AlgorithmConfig
    from agentrl.trainer import batch, credit
    from agentrl.trainer.batch import BatchTrajectory
    from agentrl.trainer.rewards import outcome

    def cut(turn_id: Tensor, starts: Tensor | None = None) -> Tensor:
        return torch.arange(len(turn_id)) // PIECE

    def averaged(rewards: Tensor, trajectory: BatchTrajectory, settings: AlgorithmConfig) -> Tensor:
        whole, ends = rewards.clone(), turn_ends(trajectory.unit_id)
        whole[ends] += outcome(trajectory, settings) / len(ends)
        return whole

    batch.unit_ids = cut
    credit.with_outcome = averaged


def micro_batch() -> None:
    """Advantages are whitened over `MICRO_BATCH` trajectories at a time, not over the batch."""
    from agentrl.algorithm.normalise import VARIANCE_EPS, whiten
    from agentrl.trainer import credit

    def by_parts(values: Sequence[Tensor], masks: Sequence[Tensor], *, eps: float = VARIANCE_EPS) -> list[Tensor]:
        starts = range(0, len(values), MICRO_BATCH)
        parts = [whiten(values[i : i + MICRO_BATCH], masks[i : i + MICRO_BATCH], eps=eps) for i in starts]
        return [tensor for part in parts for tensor in part]

    credit.whiten = by_parts


CONTROLS = {"hard_cut": hard_cut, "micro_batch": micro_batch}


def _start_trainer_under(control: str) -> None:
    """Let the launcher of this process start the trainer through this module."""
    from agentrl.launch import run
    from agentrl.launch.processes import Child, RunProcesses

    class UnderControl(RunProcesses):
        def _spawn(self, child: Child) -> None:
            if child.role == "trainer" and child.command[2] == _COMMAND:
                child.command = [*child.command[:2], "benchmarks.learning.controls", control, *child.command[3:]]
            super()._spawn(child)

    run.RunProcesses = UnderControl  # type: ignore[misc]


def main(control: str, arguments: Sequence[str]) -> None:
    """``arguments``: of ``agentrl``. Exits as it does."""
    from agentrl.cli.main import main as agentrl

    if arguments[0] == "trainer":
        CONTROLS[control]()
    else:
        _start_trainer_under(control)
    sys.argv = ["agentrl", *arguments]
    agentrl()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
