"""Lag of single tokens, along the parent chain of versions."""

from __future__ import annotations

from typing import ClassVar

import torch

from agentrl.errors import UnknownVersion
from agentrl.trainer.lags import TokenLags
from agentrl.types import PolicyVersion


class Versions:
    """0 - 1 - 2 (abandoned) and 1 - 3 - 4, of which 3 repeats the updates of 1 after a resume."""

    rows: ClassVar = {
        version: PolicyVersion(version, parent, updates, "uri", "sum", "published")
        for version, parent, updates in [(0, None, 0), (1, 0, 1), (2, 1, 2), (3, 1, 1), (4, 3, 2)]
    }

    def __init__(self) -> None:
        self.asked: list[int] = []

    def find(self, version: int) -> PolicyVersion:
        self.asked.append(version)
        if version not in self.rows:
            raise UnknownVersion(f"version {version} has no row")
        return self.rows[version]


def test_lag__counts_updates_and_not_names() -> None:
    versions = Versions()
    lags = TokenLags(versions.find)
    assert lags.of(torch.tensor([4, 3, 1, 0, 0]), versions.rows[4]).tolist() == [0, 1, 1, 2, 2]
    assert lags.of(torch.tensor([0, 1]), versions.rows[3]).tolist() == [1, 0]
    assert len(versions.asked) == len(set(versions.asked))  # each row is read once


def test_lag_of_an_abandoned_branch__goes_over_the_common_ancestor() -> None:
    versions = Versions()
    assert TokenLags(versions.find).of(torch.tensor([2]), versions.rows[4]).tolist() == [2]


def test_tokens_of_another_run__count_with_the_items_lag() -> None:
    versions = Versions()
    lags = TokenLags(versions.find)
    unknown = lags.of_item([torch.tensor([77, 77])], 5, versions.rows[4])
    assert [x.tolist() for x in unknown] == [[5, 5]]
    same_names = lags.of_item([torch.tensor([4, 3])], 9, versions.rows[4])
    assert [x.tolist() for x in same_names] == [[9, 9]]
    own = lags.of_item([torch.tensor([4, 3]), torch.tensor([0])], 2, versions.rows[4])
    assert [x.tolist() for x in own] == [[0, 1], [2]]
    assert lags.of_item([], 2, versions.rows[4]) == []
    masked = lags.of_item([torch.tensor([4, 0])], 0, versions.rows[4], masked=True)
    assert [x.tolist() for x in masked] == [[0, 2]], "the item's lag is that of its tokens in the loss"
    assert lags.of_version(2, versions.rows[4]) == 2
