"""Micro-batches: every row once, bounded padding, the same plan on every rank."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.trainer.megatron.microbatch import Row, Shard, collate, plan


def row(length: int) -> Row:
    return Row(torch.arange(length + 1), torch.tensor([length]) if length else torch.zeros(0, dtype=torch.int64))


rank_counts = st.integers(1, 4)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=20), max_tokens=st.integers(1, 200), ranks=rank_counts, padded=st.booleans()
)
def test_plan__every_row_with_positions_in_one_batch_of_one_rank(
    lengths: list[int], max_tokens: int, ranks: int, padded: bool
) -> None:
    rows = [row(n) for n in lengths]
    plans = [plan(rows, max_tokens=max_tokens, rank=rank, ranks=ranks, padded=padded) for rank in range(ranks)]
    seen = [i for batches in plans for batch in batches for i in batch]
    assert sorted(seen) == [i for i, n in enumerate(lengths) if n]
    for batches in plans:
        assert batches
        for batch in batches:
            own = [lengths[i] for i in batch]
            tokens = len(batch) * max(own, default=0) if padded else sum(own)
            assert tokens <= max_tokens or len(batch) == 1
    if not padded:
        assert len({len(batches) for batches in plans}) == 1


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=8, max_size=40), ranks=rank_counts)
def test_plan__tokens_are_balanced_over_the_ranks(lengths: list[int], ranks: int) -> None:
    rows = [row(n) for n in lengths]
    loads = [
        sum(lengths[i] for batch in plan(rows, max_tokens=10_000, rank=rank, ranks=ranks) for i in batch)
        for rank in range(ranks)
    ]
    assert max(loads) - min(loads) <= max(lengths)


def test_collate__positions_point_at_the_state_before_their_token() -> None:
    rows = [
        Row(torch.tensor([7, 8, 9]), torch.tensor([1, 3]), {"c": torch.tensor([0.1, 0.2])}, 0.5),
        Row(torch.tensor([4, 5, 6, 3, 2]), torch.tensor([2, 4]), {"c": torch.tensor([0.3, 0.4])}),
    ]
    micro = collate(rows, (1, 0), torch.device("cpu"))
    assert micro.token_ids.tolist() == [[4, 5, 6, 3, 7, 8, 9]]
    assert micro.lengths == (4, 3)
    assert micro.places.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert micro.token_ids[0][micro.source].tolist() == [5, 3, 7, 9]
    assert micro.targets.tolist() == [6, 2, 8, 0]
    assert micro.temperature is not None
    assert micro.temperature.tolist() == [1.0, 1.0, 0.5, 0.5]
    assert torch.allclose(micro.columns["c"], torch.tensor([0.3, 0.4, 0.1, 0.2]))


def test_collate_for_sequence_parallel_ranks__filled_up_to_a_multiple_behind_the_rows() -> None:
    micro = collate([row(5)], (0,), torch.device("cpu"), Shard(multiple=4))
    assert micro.lengths == (5, 3)
    assert micro.token_ids.shape == (1, 8)
    assert micro.source.tolist() == [4]


@pytest.mark.parametrize("positions", [[0, 1], [2, 4]])
def test_row_with_a_position_outside_its_tokens__refused(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="row of 3 tokens"):
        Row(torch.tensor([7, 8, 9]), torch.tensor(positions))


def test_collate_without_rows__one_filler_token_and_no_positions() -> None:
    micro = collate([], (), torch.device("cpu"))
    assert micro.token_ids.shape == (1, 1)
    assert len(micro.source) == len(micro.targets) == 0


def test_collate__a_stop_token_that_is_the_padding_id_still_trains() -> None:
    stop = 0  # rows are padded with this id
    rows = [Row(torch.tensor([5, 6, stop]), torch.tensor([1, 2])), Row(torch.tensor([5, 1, 2, 3, 4, stop]), torch.arange(1, 6))]
    micro = collate(rows, [0, 1], torch.device("cpu"))
    assert micro.targets.tolist() == [6, stop, 1, 2, 3, 4, stop]
