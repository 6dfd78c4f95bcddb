"""Which claimed items become a batch, and which are dropped, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
from trainer_samples import segment, stored

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.store.contract import ClaimedItem
from agentrl.trainer.loop import _sort_items
from agentrl.types import DropReason

GROUPS = AlgorithmConfig(advantage="group", critic=None, group_size=2, truncation="zero")


def group(number: int, rewards: Sequence[float]) -> ClaimedItem:
    own = UUID(int=number)
    members = [stored(10 * number + seat, group=own, reward=reward) for seat, reward in enumerate(rewards)]
    return ClaimedItem(own, 100 + number, 0, 0, members)


def test_uniform_group__is_dropped_before_anything_is_counted() -> None:
    items = [group(1, [1.0, 1.0]), group(2, [1.0, 0.0]), group(3, [0.0, 0.0])]
    batch, consumed, dropped = _sort_items(items, 100, replace_filter(GROUPS, True))
    assert consumed == [(UUID(int=2), 102)]
    assert dropped == [(UUID(int=n), 100 + n, DropReason.ZERO_VARIANCE) for n in (1, 3)]
    assert batch.n_actions == 10
    everything, consumed, dropped = _sort_items(items, 100, replace_filter(GROUPS, False))
    assert (len(consumed), dropped, everything.n_actions) == (3, [], 30)


def test_unsound_member__drops_its_item_for_its_own_reason() -> None:
    item = group(1, [1.0, 1.0])
    broken = stored(11, [segment(0, 4, 3, logprobs=np.full(3, np.nan, np.float32))], group=item.item)
    items = [replace(item, trajectories=[item.trajectories[0], broken]), group(2, [1.0, 0.0])]
    _, consumed, dropped = _sort_items(items, 100, replace_filter(GROUPS, True))
    assert dropped == [(UUID(int=1), 101, DropReason.NON_FINITE)]
    assert consumed == [(UUID(int=2), 102)]


def test_trajectory_in_two_items__trains_once() -> None:
    """Delivered twice, it is neither doubled in the loss and its denominator nor lost."""
    single = AlgorithmConfig()
    items = [ClaimedItem(UUID(int=n), n, 0, 0, [stored(7 if n < 3 else n)]) for n in (1, 2, 3)]
    batch, consumed, dropped = _sort_items(items, 100, single)
    assert [t.id for t in batch.trajectories] == [stored(7).id, stored(3).id]
    assert consumed == [(UUID(int=1), 1), (UUID(int=3), 3)]
    assert dropped == [(UUID(int=2), 2, DropReason.DUPLICATE)]


def replace_filter(config: AlgorithmConfig, on: bool) -> AlgorithmConfig:
    return config.model_copy(update={"drop_uniform_groups": on})
