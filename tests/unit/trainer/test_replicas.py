"""Two data-parallel processes that get the same group."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.trainer.ranks import run_ranks


def test_same_group_on_two_replicas__equal_advantages_element_by_element(tmp_path: Path) -> None:
    run_ranks("tests.unit.trainer.replica_rank", [str(tmp_path)], 2)
    one, other = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert set(one) == {"grpo", "sao_turn"}
    for preset, advantages in one.items():
        assert len(advantages) == len(other[preset]) == 8
        for left, right in zip(advantages, other[preset], strict=True):
            assert torch.equal(left, right)
        assert torch.cat(advantages).std() > 0.1
