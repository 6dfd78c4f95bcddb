"""Numbers of steps as TensorBoard curves, under tags that stay the same from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from agentrl.errors import NotReadyError

_SUFFIX = ".agentrl"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "1_quality": ("reward_mean", "reward_std", "success", "turns_mean", "action_tokens", "truncated_share"),
    "2_policy": (
        "entropy",
        "kl_k3",
        "kept_fraction",
        "ess_sequence",
        "policy_grad_norm",
        "policy_loss",
        "policy_lr",
        "kl_reference",
    ),
    "3_critic": ("explained_variance", "value_loss", "critic_grad_norm", "value_mean", "return_mean"),
    "4_data": ("lag_mean", "lag_max", "hit_rate", "uniform_groups", "trajectories", "tokens"),
    "5_time": ("wall_s", "wait_s", "train_s", "sync_share", "reward_share", "tokens_per_s"),
}
"""The curated view: what is looked at first, in its order. Everything else is under ``other``."""


def tag(metric: str) -> str:
    """``part/metric``."""
    return next((f"{part}/{metric}" for part, names in _PARTS.items() if metric in names), f"other/{metric}")


class Curves:
    """Writes the event files of one run into ``folder``, in the place of those that an earlier call wrote there.

    `NotReadyError` without the package tensorboardX.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
        except ImportError:
            raise NotReadyError("TensorBoard files need the package tensorboardX: pip install tensorboardX") from None
        for earlier in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            earlier.unlink()
        try:
            self._writer = SummaryWriter(str(folder), filename_suffix=_SUFFIX)
        except OSError as error:
            raise NotReadyError(f"The folder {folder} can't be written: {error}") from None

    def add(self, step: int, at: datetime, metrics: Mapping[str, Any]) -> None:
        """The numbers of a step; what is no number is left out."""
        for name, value in metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(tag(name), float(value), step, walltime=at.timestamp())

    def score(self, step: int, at: datetime, split: str, success: float) -> None:
        """The score of an evaluation that was asked for after ``step``."""
        self._writer.add_scalar(f"1_quality/{split}_success", success, step, walltime=at.timestamp())

    def flush(self) -> None:
        """Everything so far is in the files."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
